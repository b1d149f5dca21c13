"""Train, validation and test: fixed by the seed and the row numbers, by nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from finetune_trainer.config import Split

SPLITS = ("train", "validation", "test")


def counts(rows: int, split: Split) -> tuple[int, int, int]:
    """How many of `rows` go to train, validation and test.

    Every part with a share gets a row as soon as there is one for each; with fewer rows all are trained.
    """
    parts = (split.validation, split.test)
    total = split.train + sum(parts)
    if rows < 1 + sum(share > 0 for share in parts):
        return rows, 0, 0
    validation, test = (max(1, (rows * share + total // 2) // total) if share else 0 for share in parts)
    while validation + test >= rows:
        validation, test = (validation - 1, test) if validation > test else (validation, test - 1)
    return rows - validation - test, validation, test


def assign(numbers: npt.NDArray[np.int64], split: Split) -> npt.NDArray[np.int8]:
    """Assign each row to a split: 0 train, 1 validation, 2 test.

    Rows are ordered by a hash of their number and the seed (the finaliser of SplitMix64, Steele et al.
    2014); the first go to validation, the next to test. The same rows always part the same way,
    on any machine and any number of processes.

    Args:
        numbers: int64 `[rows]`, the rows' numbers in source order, all different.
        split: shares and seed.
    """
    _, validation, test = counts(len(numbers), split)
    with np.errstate(over="ignore"):
        key = numbers.astype(np.uint64) + np.uint64(split.seed % (1 << 64)) * np.uint64(0x9E3779B97F4A7C15)
        key += np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        key ^= key >> np.uint64(31)
    order = np.argsort(key, kind="stable")
    parts = np.zeros(len(numbers), dtype=np.int8)
    parts[order[:validation]] = 1
    parts[order[validation : validation + test]] = 2
    return parts
