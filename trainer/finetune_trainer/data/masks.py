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


def render(
    conversation: Conversation, template: ChatTemplate, specials: tuple[str, ...], loss: Loss
) -> list[Rendered]:
    """Render a conversation to one text, or to one text per reply.

    Args:
        conversation: has at least one reply.
        template: writes it down.
        specials: the tokenizer's control tokens.
        loss: which replies are learned; with `All`, the whole text.

    Raises:
        RowFault: the template refuses the conversation or gives a reply no place.
    """
    messages, tools = conversation.messages, conversation.tools
    replies = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    wanted = [place for place in replies if place not in conversation.muted]
    if loss == "LastTurn":
        wanted = wanted[-1:]
    whole = template.render(messages, tools)
    found = [_reply(messages, tools, place, template, specials, whole) for place in wanted]
    ends = all(reply.ends for reply in found)
    foreign = any(reply.foreign for reply in found)
    if all(whole.startswith(reply.text[: reply.end]) for reply in found):
        if loss == "All":
            return [Rendered(whole, [(0, len(whole.rstrip()))], wanted[0], ends, foreign)]
        if wanted[-1] == len(messages) - 1 and not found[-1].ends:
            whole = whole[: found[-1].end]
        return [Rendered(whole, [(reply.start, reply.end) for reply in found], wanted[0], ends, foreign)]
    return [
        Rendered(
            reply.text[: reply.end],
            [(0 if loss == "All" and reply is found[-1] else reply.start, reply.end)],
            place,
            reply.ends,
            reply.foreign,
        )
        for place, reply in zip(wanted, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    """The conversation up to and with the reply."""
    start: int
    end: int
    ends: bool
    foreign: bool


def _reply(
    messages: list[Message],
    tools: list[dict[str, object]] | None,
    place: int,
    template: ChatTemplate,
    specials: tuple[str, ...],
    whole: str,
) -> _Reply:
    text = whole if place == len(messages) - 1 else template.render(messages[: place + 1], tools)
    prompt = template.render(messages[:place], tools, reply=True) if place else None
    foreign = prompt is not None and not text.startswith(prompt)
    if prompt is None or foreign:
        start = _start(messages[: place + 1], tools, template, text, prompt)
    else:
        start = len(prompt)
    body = text[start:].rstrip()
    if not body:
        raise RowFault("the chat template leaves the reply out")
    end = start + len(body)
    return _Reply(text, start, end, body.endswith(specials), foreign)


def _start(
    messages: list[Message],
    tools: list[dict[str, object]] | None,
    template: ChatTemplate,
    text: str,
    prompt: str | None,
) -> int:
    """Where the last message's reply starts in `text`, told by a stand-in for its content."""
    stand_in: list[Message] = [*messages[:-1], {"role": "assistant", "content": _NOWHERE}]
    skeleton = template.render(stand_in, tools)
    start = skeleton.find(_NOWHERE)
    if start >= 0 and text.startswith(skeleton[:start]):
        return start
    # The reply's content changes what stands before it: what prompt and text share is not learned.
    if prompt is not None:
        shared = len(os.path.commonprefix([prompt, text]))  # noqa: RUF071 - characters are meant
        if text[:shared].rstrip().startswith(template.render(messages[:-1], tools).rstrip()):
            return shared
    raise RowFault("the chat template gives the reply no place of its own")
