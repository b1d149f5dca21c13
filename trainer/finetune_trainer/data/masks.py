"""Conversations to text with the places that are learned: the replies, with their end-of-turn.

A reply is found by position: it starts where the template's own prompt for it ends. No template needs
`{% generation %}` for this. Where a template writes earlier turns differently once later ones exist
(it drops their reasoning), one text per reply is made, each as a server would see it.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from typing import Literal

from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.conversation import Conversation, Message
from finetune_trainer.data.faults import RowFault

Loss = Literal["Response", "LastTurn", "All"]

_NOWHERE = "\ufdd3reply\ufdd4"
"""Stands for a reply's content where only its place is asked for."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text and the character ranges `[start, end)` of it that are learned, in order.

    `first` is the place in the conversation of the first reply that is learned; `ends` tells whether
    the template itself ends replies with a control token.
    """

    text: str
    learned: list[tuple[int, int]]
    first: int
    ends: bool
    foreign_prompt: bool = False
    """The template's prompt for a reply is not what it writes before a reply in a conversation."""


class Renderer:
    """Renders conversations with one template.

    Args:
        template: writes them down.
        specials: the tokenizer's control tokens.
        loss: which replies are learned; with `All`, the whole text.
    """

    def __init__(self, template: ChatTemplate, specials: tuple[str, ...], loss: Loss) -> None:
        self._template = template
        self._specials = specials
        self._loss = loss
        self._skeletons: dict[tuple[object, ...], _Skeleton] = {}

    def render(self, conversation: Conversation) -> list[Rendered]:
        """Render a conversation with at least one reply: to one text, or to one text per reply.

        Raises:
            RowFault: the template refuses the conversation or gives a reply no place.
        """
        messages = conversation.messages
        wanted = [
            place
            for place, message in enumerate(messages)
            if message["role"] == "assistant" and place not in conversation.muted
        ]
        if self._loss == "LastTurn":
            wanted = wanted[-1:]
        whole = self._template.render(messages, conversation.tools)
        key = _kind(conversation)
        skeleton = self._skeletons.get(key)
        learned = skeleton.find(whole, messages) if skeleton is not None else None
        if learned is not None:
            return [Rendered(whole, self._or_all(whole, learned), wanted[0], ends=True)]
        found = [self._reply(conversation, place, whole) for place in wanted]
        ends = all(reply.ends for reply in found)
        foreign = any(reply.foreign for reply in found)
        if all(whole.startswith(reply.text[: reply.end]) for reply in found):
            learned = [(reply.start, reply.end) for reply in found]
            if ends and not foreign and (skeleton := _skeleton(whole, messages, wanted, learned)) is not None:
                self._skeletons[key] = skeleton
            if self._loss != "All" and wanted[-1] == len(messages) - 1 and not found[-1].ends:
                whole = whole[: found[-1].end]
            return [Rendered(whole, self._or_all(whole, learned), wanted[0], ends, foreign)]
        return [
            Rendered(
                reply.text[: reply.end],
                [(0 if self._loss == "All" and reply is found[-1] else reply.start, reply.end)],
                place,
                reply.ends,
                reply.foreign,
            )
            for place, reply in zip(wanted, found, strict=True)
        ]

    def _or_all(self, whole: str, learned: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(0, len(whole.rstrip()))] if self._loss == "All" else learned

    def _reply(self, conversation: Conversation, place: int, whole: str) -> _Reply:
        messages, tools = conversation.messages[: place + 1], conversation.tools
        text = whole if place == len(conversation.messages) - 1 else self._template.render(messages, tools)
        prompt = self._template.render(messages[:-1], tools, reply=True) if place else None
        if prompt is None or not text.startswith(prompt):
            start = self._start(messages, tools, text, prompt)
            return self._cut(text, start, foreign=prompt is not None)
        return self._cut(text, len(prompt), foreign=False)

    def _cut(self, text: str, start: int, *, foreign: bool) -> _Reply:
        body = text[start:].rstrip()
        if not body:
            raise RowFault("the chat template leaves the reply out")
        return _Reply(text, start, start + len(body), body.endswith(self._specials), foreign)

    def _start(
        self, messages: list[Message], tools: list[dict[str, object]] | None, text: str, prompt: str | None
    ) -> int:
        """Where the last message's reply starts in `text`, told by a stand-in for its content."""
        stand_in: list[Message] = [*messages[:-1], {"role": "assistant", "content": _NOWHERE}]
        skeleton = self._template.render(stand_in, tools)
        start = skeleton.find(_NOWHERE)
        if start >= 0 and text.startswith(skeleton[:start]):
            return start
        # The reply's content changes what stands before it: what prompt and text share is not learned.
        if prompt is not None:
            shared = len(os.path.commonprefix([prompt, text]))  # noqa: RUF071 - characters are meant
            before = self._template.render(messages[:-1], tools).rstrip()
            if text[:shared].startswith(before):
                return shared
        raise RowFault("the chat template gives the reply no place of its own")


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    """The conversation up to and with the reply."""
    start: int
    end: int
    ends: bool
    foreign: bool


@dataclass(frozen=True, slots=True)
class _Skeleton:
    """What a template writes around the contents of one kind of conversation.

    It saves most conversations two more renderings a reply: where the rendered text is the contents between
    the same words as before, the replies lie where they lay. Any other text is rendered reply by reply.
    """

    first: int
    """The message whose content comes first in what is compared; what stands before it may differ."""
    gaps: tuple[str, ...]
    """What follows each content, up to the next."""
    tails: dict[int, int]
    """Characters behind a reply's content that are learned with it, by the reply's place."""

    def find(self, whole: str, messages: list[Message]) -> list[tuple[int, int]] | None:
        """The learned ranges of `whole`, or None where it is not built as expected."""
        contents = [message["content"] for message in messages[self.first :]]
        expected = "".join(part for pair in zip(contents, self.gaps, strict=True) for part in pair)
        if not whole.endswith(expected):
            return None
        position = len(whole) - len(expected)
        learned: list[tuple[int, int]] = []
        for place, (content, gap) in enumerate(zip(contents, self.gaps, strict=True), self.first):
            if place in self.tails:
                learned.append((position, position + len(content) + self.tails[place]))
            position += len(content) + len(gap)
        return learned


def _skeleton(
    whole: str, messages: list[Message], wanted: list[int], learned: list[tuple[int, int]]
) -> _Skeleton | None:
    """The skeleton of a conversation whose replies were found; None where a content was rewritten."""
    first = 1 if messages[0]["role"] == "system" and wanted[0] else 0
    ranges = dict(zip(wanted, learned, strict=True))
    position, edges = 0, []
    for place, message in enumerate(messages[first:], first):
        content = message["content"]
        start = ranges[place][0] if place in ranges else whole.find(content, position)
        if start < position or not whole.startswith(content, start):
            return None
        position = start + len(content)
        edges.append((start, position))
    starts = [start for start, _ in edges[1:]] + [len(whole)]
    gaps = tuple(whole[end:start] for (_, end), start in zip(edges, starts, strict=True))
    tails = {place: end - start - len(messages[place]["content"]) for place, (start, end) in ranges.items()}
    # Where white space at a reply's end may be what was stripped, its length depends on the content.
    if min(tails.values()) < 1:
        return None
    return _Skeleton(first, gaps, tails)


def _kind(conversation: Conversation) -> tuple[object, ...]:
    """What a template's words around the contents depend on, apart from the contents themselves."""
    shapes = (
        (message["role"], *(name for name in message if name not in ("role", "content")))
        for message in conversation.messages
    )
    return (conversation.tools is not None, conversation.muted, *shapes)
