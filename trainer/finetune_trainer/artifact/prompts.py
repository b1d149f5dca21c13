"""Held-out examples as people read them: the question, without the template around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from finetune_trainer.data.arrays import Examples
from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.conversation import Message
from finetune_trainer.data.faults import RowFault
from finetune_trainer.data.tokeniser import Tokeniser

_LONGEST_PROMPT = 1024
"""Tokens; longer prompts take too long to answer for a sample."""
_LOOKED_AT = 1000
"""Examples that are searched for good samples."""
_FIRST, _REPLY, _SECOND = "first finetune question", "finetune reply", "second finetune question"


@dataclass(frozen=True)
class Held:
    """One held-out example, cut where the model has to go on."""

    prompt: list[int]
    expected: list[int]


@dataclass(frozen=True)
class Frame:
    """What a chat template puts around the last question, as the tokenizer reads it back."""

    opening: str
    closing: str
    closing_ids: list[int]

    @classmethod
    def of(cls, template: ChatTemplate, tokeniser: Tokeniser) -> Frame | None:
        """Find it out by two probes; None where the template does not render them.

        What stands before the first question and before the second one differs by system prompts and
        earlier replies; what both have in common at their end belongs to the question itself.
        """
        first: Message = {"role": "user", "content": _FIRST}
        more: list[Message] = [
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": _SECOND},
        ]
        try:
            alone = template.render([first], reply=True)
            continued = template.render([first, *more], reply=True)
        except RowFault:
            return None
        closing_ids = tokeniser.encode_part(alone.partition(_FIRST)[2], behind=False)
        before, _, closing = _read_back(alone, tokeniser).partition(_FIRST)
        between = _read_back(continued, tokeniser).partition(_REPLY)[2].partition(_SECOND)[0]
        opening = _common_end(before, between)
        return cls(opening, closing, closing_ids) if opening.strip() else None

    def question(self, text: str) -> str:
        """The last question in a prompt's text, or the text itself where none is recognised."""
        _, found, question = text.rpartition(self.opening)
        if not found:
            return text
        question, complete, _ = question.partition(self.closing)
        if self.closing and not complete:
            # A reply can be learned from within what a server puts before it.
            size = next(
                (size for size in range(len(self.closing), 0, -1) if question.endswith(self.closing[:size])),
                0,
            )
            question = question[: len(question) - size]
        return question


class Reader:
    """Turns tokens into what people read.

    Args:
        tokeniser: the model's.
        template: the chat template of training; None for text without turns.
    """

    def __init__(self, tokeniser: Tokeniser, template: ChatTemplate | None) -> None:
        self._tokeniser = tokeniser
        self._frame = Frame.of(template, tokeniser) if template is not None else None

    def prompt(self, tokens: Sequence[int]) -> str:
        """The question that a prompt ends with."""
        text = self._tokeniser.decode(tokens)
        if self._frame is not None:
            text = self._frame.question(text)
        return self._plain(text)

    def text(self, tokens: Sequence[int]) -> str:
        """A reply, without control tokens."""
        return self._plain(self._tokeniser.decode(tokens))

    def hold(self, tokens: Sequence[int], trained: Sequence[bool]) -> Held | None:
        """Cut an example before the last stretch that is learned; None where nothing is.

        Where everything is learned, it is cut before the last reply, or in the middle of the text.
        """
        flags = np.asarray(trained, dtype=np.bool_)
        if not flags.any():
            return None
        end = int(np.flatnonzero(flags)[-1]) + 1
        untrained = np.flatnonzero(~flags[:end])
        start = int(untrained[-1]) + 1 if len(untrained) else 0
        ids = [int(token) for token in tokens]
        if not self.text(ids[:start]):
            start = self._last_reply(ids[:end]) or start + (end - start) // 2
        return Held(ids[:start], ids[start:end]) if 0 < start < end else None

    def _last_reply(self, tokens: list[int]) -> int | None:
        mark = self._frame.closing_ids if self._frame is not None else []
        places = range(len(tokens) - len(mark) - 1, -1, -1) if mark else range(0)
        return next((at + len(mark) for at in places if tokens[at : at + len(mark)] == mark), None)

    def _plain(self, text: str) -> str:
        return self._tokeniser.special.sub("", text).strip()


def choose(examples: Examples, reader: Reader, limit: int) -> list[Held]:
    """The first examples whose expected replies differ, short enough to be answered in a moment."""
    chosen: list[Held] = []
    for place in range(min(len(examples), _LOOKED_AT)):
        held = reader.hold(examples.tokens(place).tolist(), examples.trained(place).tolist())
        if held is None or len(held.prompt) > _LONGEST_PROMPT:
            continue
        if all(held.expected != other.expected for other in chosen):
            chosen.append(held)
        if len(chosen) == limit:
            break
    return chosen


def _read_back(text: str, tokeniser: Tokeniser) -> str:
    return tokeniser.decode(tokeniser.encode_part(text, behind=False))


def _common_end(one: str, other: str) -> str:
    pairs = zip(reversed(one), reversed(other), strict=False)
    size = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return one[len(one) - size :]
