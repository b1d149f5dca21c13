"""Blocks of records to token arrays: what each process does, the same in one process as in many."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

import numpy as np
import numpy.typing as npt

from finetune_trainer.config import Dataset
from finetune_trainer.data import fit, literal
from finetune_trainer.data.chat_template import ChatTemplate, tojson
from finetune_trainer.data.conversation import Conversation, Message, Passage, Row
from finetune_trainer.data.encode import (
    Example,
    Segment,
    encode_passages,
    encode_rendered,
    passage_segments,
    segments,
)
from finetune_trainer.data.faults import Fault, RowFault, Skipped, SkippedRow
from finetune_trainer.data.formats import Format, read_row
from finetune_trainer.data.masks import Rendered, Renderer
from finetune_trainer.data.preview import Preview, decoded
from finetune_trainer.data.readers import Block
from finetune_trainer.data.records import parse
from finetune_trainer.data.scripts import scripts
from finetune_trainer.data.templates import TOOLS_INTRO, resolve
from finetune_trainer.data.tokeniser import Tokeniser, TokenizerFiles

DIGEST = np.dtype("V16")
"""Digest of a row: of its tokens and of what is learned in them."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides how rows become tokens; the same in every process."""

    dataset: Dataset
    files: TokenizerFiles
    now: datetime


@dataclass(slots=True)
class Result:
    """What became of a block. Row numbers in arrays count the block's records from 0."""

    records: int = 0
    tokens: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    trained: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    lengths: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per example."""
    example_rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows that were kept."""
    digests: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, DIGEST))
    """Per kept row."""
    faults: list[Fault] = field(default_factory=list)
    syntax: bool = False
    """A fault is one of syntax: in an array, numbers behind it mean nothing."""
    skipped: list[Skipped] = field(default_factory=list)
    dropped: list[Skipped] = field(default_factory=list)
    """Rows too long, or with nothing left to learn once cut."""
    tally: Counter[str] = field(default_factory=Counter)
    scripts: Counter[str] = field(default_factory=Counter)
    previews: list[Preview] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    """A row between rendering and encoding."""

    ordinal: int
    number: int
    row: Row
    turns: int = 0
    """Messages as the data has them; 0 for text without turns."""
    rendered: list[Rendered] = field(default_factory=list)
    guard: str | None = None


class Worker:
    """Turns blocks into results.

    Raises:
        RunError: the tokenizer or the template cannot be used.
    """

    def __init__(self, plan: Plan) -> None:
        self._dataset = plan.dataset
        self.tokeniser = Tokeniser(plan.files)
        self.template = resolve(plan.dataset.template, self.tokeniser, plan.now)
        self._renderers: dict[ChatTemplate, tuple[Renderer, Renderer]] = {}
        self._bound = plan.dataset.max_length * self.tokeniser.longest

    def process(self, block: Block, file: str, form: Format, *, previews: int, encode: bool) -> Result:
        """Read, render and encode the records of a block.

        Args:
            block: the records.
            file: its file's name, for messages.
            form: the format of the file.
            previews: of so many rows, also say what the model will see.
            encode: not only look for faults.
        """
        result = Result()
        pending: list[_Pending] = []
        for number, raw in block.records():
            ordinal = result.records
            result.records += 1
            try:
                record = raw if isinstance(raw, dict) else parse(raw)
                row = fit.bound(read_row(record, form, self.template.before_input), self._bound)
                pending.append(self._render(_Pending(ordinal, number, row), result))
            except RowFault as fault:
                result.faults.append(Fault(file, number, fault.reason))
                result.syntax = result.syntax or fault.syntax
            except SkippedRow as skipped:
                result.skipped.append(Skipped(file, number, skipped.reason))
        if encode and (not result.faults or self._dataset.overlong == "Fail"):
            self._encode(pending, file, result, previews)
        return result

    def _render(self, item: _Pending, result: Result) -> _Pending:
        row = item.row
        if isinstance(row, Passage):
            text = row.completion
        else:
            result.tally["conversations"] += 1
            item.turns = len(row.messages)
            row = self._adapt(self._prompted(row, result), result)
            text = "".join([message["content"] for message in row.messages])
            for marker in self.template.unknown_markers:
                if marker in text:
                    raise SkippedRow(
                        f"the text spells {marker}, and so does the template {self.template.name}, because "
                        "this tokenizer has no such token: the two could not be told apart"
                    )
            if literal.spelled(row, self.tokeniser):
                row, item.guard = literal.guard(row, self.tokeniser)
                result.tally["spelled"] += 1
            item.rendered = self._renderer(row).render(row)
            item.row = row
            for role in _lost(row, item.rendered[-1].text):
                result.tally[f"lost {role}"] += 1
            result.tally["unended"] += not item.rendered[0].ends
            result.tally["foreign prompts"] += item.rendered[0].foreign_prompt
        result.scripts.update(scripts(text))
        return item

    def _renderer(self, row: Conversation, *, last: bool = False) -> Renderer:
        """The renderer for a conversation by the job's loss, or for its last reply only."""
        chat = self.template.for_tools(row.tools is not None)
        if chat not in self._renderers:
            specials = tuple(self.tokeniser.specials)
            self._renderers[chat] = (
                Renderer(chat, specials, self._dataset.loss),
                Renderer(chat, specials, "LastTurn"),
            )
        return self._renderers[chat][last]

    def _prompted(self, row: Conversation, result: Result) -> Conversation:
        """Put the job's system prompt before conversations that have none."""
        prompt = self._dataset.system_prompt
        own = row.messages[0]["role"] == "system"
        result.tally["system prompts"] += own or bool(prompt)
        if own or not prompt:
            return row
        muted = frozenset(place + 1 for place in row.muted)
        return Conversation([{"role": "system", "content": prompt}, *row.messages], row.tools, muted)

    def _adapt(self, row: Conversation, result: Result) -> Conversation:
        """Write functions and calls as text where the template has no place for them."""
        chat = self.template.for_tools(row.tools is not None)
        messages, tools = row.messages, row.tools
        result.tally["with tools"] += tools is not None
        muted = row.muted
        if tools is not None and not chat.shows_tools:
            result.tally["tools in the system prompt"] += 1
            described = TOOLS_INTRO + "\n".join(map(tojson, tools))
            if messages[0]["role"] == "system":
                first = messages[0]["content"]
                messages = [{**messages[0], "content": f"{first}\n\n{described}"}, *messages[1:]]
            else:
                messages = [{"role": "system", "content": described}, *messages]
                muted = frozenset(place + 1 for place in muted)
            tools = None
        if not chat.shows_calls and any("tool_calls" in message for message in messages):
            result.tally["calls as text"] += 1
            messages = [_spoken(message) for message in messages]
        return Conversation(messages, tools, muted)

    def _encode(self, pending: list[_Pending], file: str, result: Result, previews: int) -> None:
        texts = [text for item in pending for text in item.rendered]
        guards = [item.guard for item in pending for _ in item.rendered]
        encoded = iter(encode_rendered(texts, guards, self.tokeniser))
        passages = [item.row for item in pending if isinstance(item.row, Passage)]
        passed = iter(encode_passages(passages, self.tokeniser))
        kept: list[list[Example]] = []
        rows: list[int] = []
        for item in pending:
            if isinstance(item.row, Passage):
                whole = [next(passed)]
            else:
                whole = [next(encoded) for _ in item.rendered]
            try:
                examples, truncated = self._fit(item, whole)
            except RowFault as fault:
                result.faults.append(Fault(file, item.number, fault.reason))
                continue
            if not examples:
                result.dropped.append(Skipped(file, item.number, self._too_long()))
                continue
            result.tally["truncated"] += truncated
            if len(result.previews) < previews:
                result.previews.append(self._preview(item, file, examples, truncated))
            kept.append(examples)
            rows.append(item.ordinal)
        result.faults.sort(key=lambda fault: fault.row or 0)
        flat = [example for examples in kept for example in examples]
        if not flat:
            return
        result.tokens = np.concatenate([example.ids for example in flat])
        result.trained = np.concatenate([example.learned for example in flat])
        result.lengths = np.array([len(example) for example in flat], dtype=np.int64)
        result.example_rows = np.repeat(rows, [len(examples) for examples in kept]).astype(np.int64)
        result.rows = np.array(rows, dtype=np.int64)
        result.digests = np.array([_digest(examples) for examples in kept], dtype=DIGEST)

    def _too_long(self) -> str:
        return f"longer than maxLength ({self._dataset.max_length} tokens)"

    def _fit(self, item: _Pending, whole: list[Example]) -> tuple[list[Example], bool]:
        """The examples of a row within maxLength, none where it is dropped, and whether anything was cut.

        Raises:
            RowFault: it is too long and the job says `Fail`.
        """
        limit = self._dataset.max_length
        if all(len(example) <= limit for example in whole):
            return whole, False
        if self._dataset.overlong == "Fail":
            length = max(map(len, whole))
            raise RowFault(f"{length} tokens are more than maxLength ({limit}), and overlong is Fail")
        if self._dataset.overlong == "Drop":
            return [], False
        fitted = [self._fitted(item, place, example) for place, example in enumerate(whole)]
        return [example for example in fitted if example is not None], True

    def _fitted(self, item: _Pending, place: int, example: Example) -> Example | None:
        limit = self._dataset.max_length
        if len(example) <= limit:
            return example
        prompt, reply = fit.shape(example)
        if fit.prompt_limit(prompt, reply, limit) < prompt:
            if isinstance(item.row, Passage):
                example = fit.shorten_passage(example, limit, len(self.tokeniser.prefix))
            else:
                build = functools.partial(self._last_reply, item.guard)
                first = item.rendered[place].first
                shortened = fit.shorten_conversation(item.row, first, example, limit, build)
                if shortened is None:
                    return None
                example = shortened
        return fit.cut(example, limit, self.tokeniser)

    def _last_reply(self, guard: str | None, conversation: Conversation) -> Example:
        (rendered,) = self._renderer(conversation, last=True).render(conversation)
        return encode_rendered([rendered], [guard], self.tokeniser)[0]

    def _preview(self, item: _Pending, file: str, examples: list[Example], truncated: bool) -> Preview:
        shown: list[list[Segment]]
        if truncated:
            shown = [decoded(example, self.tokeniser) for example in examples]
        elif isinstance(item.row, Passage):
            shown = [passage_segments(item.row, self.tokeniser)]
        else:
            shown = [segments(rendered, self.tokeniser, item.guard) for rendered in item.rendered]
        tokens = sum(map(len, examples))
        return Preview(file, item.number, item.turns, tokens, truncated, shown)


def _lost(row: Conversation, text: str) -> set[str]:
    """Roles of messages whose content a template leaves out, replies apart: their reasoning may go."""
    lost: set[str] = set()
    for message in row.messages:
        content = message["content"].strip()
        if message["role"] != "assistant" and content not in text and tojson(content)[1:-1] not in text:
            lost.add(message["role"])
    return lost


def _spoken(message: Message) -> Message:
    """A message whose calls are part of its text."""
    if "tool_calls" not in message:
        return message
    calls = [
        f'<tool_call>\n{{"name": {tojson(call["function"]["name"])}, '
        f'"arguments": {tojson(call["function"]["arguments"])}}}\n</tool_call>'
        for call in message["tool_calls"]
    ]
    content = "\n".join([message["content"], *calls] if message["content"] else calls)
    return cast(
        "Message",
        {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content},
    )


def _digest(examples: list[Example]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST.itemsize)
    for example in examples:
        digest.update(example.ids.tobytes())
        digest.update(example.learned.tobytes())
    return digest.digest()
