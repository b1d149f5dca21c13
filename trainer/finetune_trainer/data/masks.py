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
        self._frames: dict[tuple[object, ...], _Frame | None] = {}

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
        found = [self._reply(conversation, place, whole) for place in wanted]
        ends = all(reply.ends for reply in found)
        foreign = any(reply.foreign for reply in found)
        if all(whole.startswith(reply.text[: reply.end]) for reply in found):
            if self._loss == "All":
                return [Rendered(whole, [(0, len(whole.rstrip()))], wanted[0], ends, foreign)]
            if wanted[-1] == len(messages) - 1 and not found[-1].ends:
                whole = whole[: found[-1].end]
            learned = [(reply.start, reply.end) for reply in found]
            return [Rendered(whole, learned, wanted[0], ends, foreign)]
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

    def _reply(self, conversation: Conversation, place: int, whole: str) -> _Reply:
        messages, tools = conversation.messages[: place + 1], conversation.tools
        key = _kind(messages, tools) if place == len(conversation.messages) - 1 else None
        if key is not None and (frame := self._frames.get(key)) is not None:
            start = frame.find(whole, messages[-1]["content"])
            if start is not None:
                return self._cut(whole, start, foreign=False)
        text = whole if key is not None else self._template.render(messages, tools)
        prompt = self._template.render(messages[:-1], tools, reply=True) if place else None
        if prompt is None or not text.startswith(prompt):
            start = self._start(messages, tools, text, prompt)
            return self._cut(text, start, foreign=prompt is not None)
        if key is not None and key not in self._frames:
            self._frames[key] = self._frame(messages, tools, whole, prompt)
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

    def _frame(
        self, messages: list[Message], tools: list[dict[str, object]] | None, whole: str, prompt: str
    ) -> _Frame | None:
        content, start = messages[-1]["content"], len(prompt)
        before = self._template.render(messages[:-1], tools)
        opening = prompt.removeprefix(before)
        if not whole.startswith(content, start) or not opening or opening == prompt:
            return None
        return _Frame(opening, whole[start + len(content) :])


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    """The conversation up to and with the reply."""
    start: int
    end: int
    ends: bool
    foreign: bool


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around the last reply of one kind of conversation.

    It saves most rows the second rendering; a row that does not fit it is rendered in full.
    """

    opening: str
    closing: str

    def find(self, whole: str, content: str) -> int | None:
        """Where the reply starts, from the end of the text."""
        start = len(whole) - len(self.closing) - len(content)
        fits = (
            whole.endswith(self.closing)
            and whole.startswith(content, max(0, start))
            and whole.endswith(self.opening, 0, max(0, start))
        )
        return start if fits else None


def _kind(messages: list[Message], tools: list[dict[str, object]] | None) -> tuple[object, ...]:
    """What a template's words around the last reply depend on, apart from its content."""
    return (tools is not None, *(message["role"] for message in messages), *messages[-1])
