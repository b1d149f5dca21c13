"""Which examples each rank sees in each optimizer step: a pure function of seed and lengths.

A global batch is a set of examples, never of packed rows, and is the same for any number of
ranks, any micro batch and with packing on or off. Only where its examples are computed differs.
"""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Schedule:
    """The order of examples over the whole run.

    The epochs' permutations are laid end to end and cut into global batches, so every batch but
    the last is full and every example is seen once per epoch.
    """

    examples: int
    global_batch: int
    total_steps: int
    total_examples: int
    seed: int

    def batch(self, step: int) -> list[int]:
        """Indices into the train split of optimizer step `step`, counted from 0."""
        first = step * self.global_batch
        last = min(first + self.global_batch, self.total_examples)
        batch: list[int] = []
        for epoch in range(first // self.examples, (last - 1) // self.examples + 1):
            start = epoch * self.examples
            order = np.random.default_rng([self.seed, epoch]).permutation(self.examples)
            batch.extend(order[max(first - start, 0) : last - start].tolist())
        return batch

    def epoch(self, step: int) -> float:
        """Epochs completed after `step` optimizer steps."""
        return min(step * self.global_batch, self.total_examples) / self.examples


def schedule(
    examples: int, *, global_batch: int, epochs: float | None, max_steps: int | None, seed: int
) -> Schedule:
    """Lay out a run of `epochs` epochs, or of exactly `max_steps` steps where that is given.

    Raises:
        ValueError: there is nothing to train on, or no length was given.
    """
    if examples < 1:
        raise ValueError("the train split is empty")
    if max_steps is not None:
        total = max_steps * global_batch
    elif epochs is not None:
        total = max(1, round(examples * epochs))
    else:
        raise ValueError("neither epochs nor max_steps is set")
    return Schedule(
        examples=examples,
        global_batch=global_batch,
        total_steps=math.ceil(total / global_batch),
        total_examples=total,
        seed=seed,
    )


def spread(lengths: NDArray[np.int64], *, ranks: int, row_tokens: int) -> list[list[list[int]]]:
    """Pack a global batch into rows of at most `row_tokens` tokens, equally many for every rank.

    Best fit finds how many rows are needed; then the examples are dealt again over that many,
    longest first and each to the emptiest row, so that rows, and with them ranks, have nearly equal
    work. An example longer than `row_tokens` raises the limit for all rows of its batch.

    Args:
        lengths: tokens of each example of the batch, `[examples]`.
        ranks: world size.
        row_tokens: tokens that one forward pass of one rank may hold.

    Returns:
        `[ranks][rows][...]` positions into `lengths`; a row may be empty.
    """
    limit = max(row_tokens, int(lengths.max()))
    order = np.argsort(-lengths, kind="stable").tolist()
    sizes = lengths.tolist()
    fitted = _best_fit(order, sizes, limit)
    per_rank = math.ceil(len(fitted) / ranks)
    rows = _level(order, sizes, per_rank * ranks)
    if max(sum(sizes[position] for position in row) for row in rows) > limit:
        rows = fitted + [[] for _ in range(per_rank * ranks - len(fitted))]
    return [rows[rank::ranks] for rank in range(ranks)]


def _best_fit(order: list[int], sizes: list[int], limit: int) -> list[list[int]]:
    """Each example, longest first, into the fullest row that still holds it (best-fit decreasing)."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []
    for position in order:
        size = sizes[position]
        at = bisect.bisect_left(free, (size, 0))
        if at == len(free):
            rows.append([position])
            bisect.insort(free, (limit - size, len(rows) - 1))
        else:
            room, row = free.pop(at)
            rows[row].append(position)
            bisect.insort(free, (room - size, row))
    return rows


def _level(order: list[int], sizes: list[int], count: int) -> list[list[int]]:
    """Each example, longest first, to the emptiest of `count` rows (LPT)."""
    rows: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, row) for row in range(count)]
    for position in order:
        load, row = heap[0]
        rows[row].append(position)
        heapq.heapreplace(heap, (load + sizes[position], row))
    return rows


def chunk(lengths: NDArray[np.int64], *, ranks: int, micro_batch: int) -> list[list[list[int]]]:
    """Split a global batch into micro batches of at most `micro_batch` examples, without packing.

    Neighbours in length share a micro batch, so that little is padded.

    Returns:
        `[ranks][rows][...]` positions into `lengths`, equally many rows for every rank.
    """
    order = np.argsort(-lengths, kind="stable").tolist()
    rows_per_rank = max(1, math.ceil(len(order) / (micro_batch * ranks)))
    groups = [order[i : i + micro_batch] for i in range(0, len(order), micro_batch)]
    groups += [[] for _ in range(rows_per_rank * ranks - len(groups))]
    # Dealt like cards: each rank gets its share of the long ones.
    return [groups[rank::ranks] for rank in range(ranks)]
