"""Rendered text to token ids, with one flag a token: learned or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from finetune_trainer.data.align import Flags, Ids, align
from finetune_trainer.data.conversation import Passage
from finetune_trainer.data.masks import Rendered
from finetune_trainer.data.tokeniser import Tokeniser


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of an example as people see it."""

    text: str
    learned: bool
    special: bool = False
    """A control token of the template, not text that spells one."""


@dataclass(slots=True)
class Example:
    """One token sequence: ids int32 `[tokens]` and flags bool `[tokens]`; the first is never learned."""

    ids: Ids
    learned: Flags

    def __post_init__(self) -> None:
        self.learned[:1] = False

    def __len__(self) -> int:
        return len(self.ids)


def encode_rendered(
    texts: Sequence[Rendered], guards: Sequence[str | None], tokeniser: Tokeniser
) -> list[Example]:
    """Encode texts and flag what is learned in them, many at once.

    Where a token lies across the start of a range (the tokenizer merges over the edge), or where
    the data spells control tokens, a text is encoded part by part: the model is asked with the
    prompt's own tokens when it serves, so the reply has to start with a token of its own.

    Args:
        texts: the texts, with guards where `guards` has one.
        guards: for each text the character that marks spelled control tokens, or None.
        tokeniser: encodes them.
    """
    plain = (rendered for rendered, guard in zip(texts, guards, strict=True) if guard is None)
    aligned = iter(align(list(plain), tokeniser))
    examples = []
    for rendered, guard in zip(texts, guards, strict=True):
        whole = next(aligned) if guard is None else None
        ids, learned = whole if whole is not None else _by_parts(rendered, tokeniser, guard)
        if not rendered.ends and tokeniser.eos is not None and rendered.learned[-1][1] == len(rendered.text):
            ids = np.append(ids, np.int32(tokeniser.eos[1]))
            learned = np.append(learned, True)
        examples.append(Example(ids, learned))
    return examples


def _by_parts(rendered: Rendered, tokeniser: Tokeniser, guard: str | None) -> tuple[Ids, Flags]:
    ids: list[int] = []
    learned: list[bool] = []
    for text, wanted in _parts(rendered):
        for piece, literal in _pieces(text, tokeniser, guard):
            glued = bool(ids) and ids[-1] not in tokeniser.special_ids
            part = tokeniser.encode_part(piece, behind=bool(ids), glued=glued, literal=literal)
            ids += part
            learned += [wanted] * len(part)
    return np.array(ids, dtype=np.int32), np.array(learned, dtype=np.bool_)


def _parts(rendered: Rendered) -> list[tuple[str, bool]]:
    """The text cut at the edges of the learned ranges, in order."""
    parts: list[tuple[str, bool]] = []
    position = 0
    for start, end in rendered.learned:
        parts += [(rendered.text[position:start], False), (rendered.text[start:end], True)]
        position = end
    parts.append((rendered.text[position:], False))
    return [(text, wanted) for text, wanted in parts if text]


def _pieces(text: str, tokeniser: Tokeniser, guard: str | None) -> list[tuple[str, bool]]:
    """Cut a part into what the tokenizer may read as it stands and runs that spell control tokens."""
    if guard is None or guard not in text:
        return [(text, False)]
    pieces: list[tuple[str, bool]] = []
    for run, special in _runs(text, tokeniser):
        literal = guard in run
        clean = run.replace(guard, "")
        if special or not pieces or pieces[-1][1] or literal:
            pieces.append((clean, literal))
        else:
            pieces[-1] = (pieces[-1][0] + clean, False)
    # White space that a control token swallows was swallowed when the text was read as a whole.
    for place, (piece, literal) in enumerate(pieces):
        if literal:
            before = pieces[place - 1][0] if place else ""
            behind = pieces[place + 1][0] if place + 1 < len(pieces) else ""
            if before in tokeniser.specials and tokeniser.strips(before)[1]:
                piece = piece.lstrip()
            if behind in tokeniser.specials and tokeniser.strips(behind)[0]:
                piece = piece.rstrip()
            pieces[place] = (piece, True)
    return [(piece, literal) for piece, literal in pieces if piece]


def _runs(text: str, tokeniser: Tokeniser) -> list[tuple[str, bool]]:
    runs: list[tuple[str, bool]] = []
    position = 0
    for found in tokeniser.special.finditer(text):
        if found.start() > position:
            runs.append((text[position : found.start()], False))
        runs.append((found[0], True))
        position = found.end()
    if position < len(text):
        runs.append((text[position:], False))
    return runs


def encode_passages(passages: Sequence[Passage], tokeniser: Tokeniser) -> list[Example]:
    """Encode texts without turns: what the tokenizer puts first, prompt, completion, end of text.

    Prompt and completion are encoded apart, as a server is asked: no letter moves across the edge.
    """
    prefix = np.array(tokeniser.prefix, dtype=np.int32)
    eos = np.array(tokeniser.eos[1:] if tokeniser.eos is not None else (), dtype=np.int32)
    prompts = iter(tokeniser.encode_literal([one.prompt for one in passages if one.prompt], behind=False))
    behind = iter(tokeniser.encode_literal([one.completion for one in passages if one.prompt], behind=True))
    alone = iter(
        tokeniser.encode_literal([one.completion for one in passages if not one.prompt], behind=False)
    )
    examples = []
    for passage in passages:
        prompt = next(prompts) if passage.prompt else np.zeros(0, dtype=np.int32)
        completion = next(behind) if passage.prompt else next(alone)
        ids = np.concatenate([prefix, prompt, completion, eos])
        learned = np.ones(len(ids), dtype=np.bool_)
        learned[: len(prefix) + len(prompt)] = False
        examples.append(Example(ids, learned))
    return examples


def segments(rendered: Rendered, tokeniser: Tokeniser, guard: str | None) -> list[Segment]:
    """The text of an example in stretches, cut where learning starts or stops and at control tokens."""
    found: list[Segment] = []
    for text, wanted in _parts(rendered):
        for run, special in _runs(text, tokeniser):
            found.append(Segment(run.replace(guard, "") if guard else run, wanted, special))
    if not rendered.ends and tokeniser.eos is not None and rendered.learned[-1][1] == len(rendered.text):
        found.append(Segment(tokeniser.eos[0], True, True))
    return found


def passage_segments(passage: Passage, tokeniser: Tokeniser) -> list[Segment]:
    """As `segments`, for text without turns."""
    names = {place: text for text, place in tokeniser.specials.items()}
    found = [Segment(names.get(place, ""), False, True) for place in tokeniser.prefix]
    if passage.prompt:
        found.append(Segment(passage.prompt, False))
    found.append(Segment(passage.completion, True))
    if tokeniser.eos is not None:
        found.append(Segment(tokeniser.eos[0], True, True))
    return found
