"""A few rows as the model will see them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from finetune_trainer.data.encode import Example, Segment
from finetune_trainer.data.tokeniser import Tokeniser


@dataclass(frozen=True, slots=True)
class Preview:
    """One row before packing: the stretches of each of its examples, in order."""

    file: str
    row: int
    """Counted from 1, as in messages."""
    turns: int
    """Messages, its system message included; 0 for text without turns."""
    tokens: int
    truncated: bool
    examples: list[list[Segment]]


def decoded(example: Example, tokeniser: Tokeniser) -> list[Segment]:
    """Stretches of a cut example, told from its tokens."""
    special = np.isin(example.ids, list(tokeniser.special_ids))
    kind = example.learned * 2 + special
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)]
    return [
        Segment(
            tokeniser.decode(example.ids[start:end].tolist()),
            bool(example.learned[start]),
            bool(special[start]),
        )
        for start, end in itertools.pairwise(edges)
        if end > start
    ]
