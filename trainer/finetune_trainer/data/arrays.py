"""Token arrays on disk: written in a stream, memory-mapped when read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from finetune_trainer.config import ExitReason, RunError

_COPY = 1 << 22
"""Tokens copied at a time."""


class Examples:
    """The examples of one split, memory-mapped: nothing is read before it is asked for.

    Raises:
        RunError: StorageUnavailable, the folder does not hold complete arrays.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._tokens: npt.NDArray[np.int32] = _map(folder / "tokens.npy")
            self._trained: npt.NDArray[np.bool_] = _map(folder / "trained.npy")
            self._offsets: npt.NDArray[np.int64] = np.load(folder / "offsets.npy")
            self.rows: npt.NDArray[np.int64] = np.load(folder / "rows.npy")
        except (OSError, ValueError, EOFError) as error:
            raise RunError(
                ExitReason.STORAGE_UNAVAILABLE, f"prepared data in {folder} is damaged: {error}"
            ) from None
        if len(self._tokens) != self._offsets[-1] or len(self._trained) != self._offsets[-1]:
            raise RunError(
                ExitReason.STORAGE_UNAVAILABLE, f"prepared data in {folder} is damaged: lengths differ"
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def tokens(self, place: int) -> npt.NDArray[np.int32]:
        """Token ids of an example, int32 `[tokens]`."""
        return self._tokens[self._offsets[place] : self._offsets[place + 1]]

    def trained(self, place: int) -> npt.NDArray[np.bool_]:
        """Which of its tokens are learned as targets, bool `[tokens]`; never the first."""
        return self._trained[self._offsets[place] : self._offsets[place + 1]]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example, int64 `[examples]`."""
        lengths: npt.NDArray[np.int64] = np.diff(self._offsets)
        return lengths

    @cached_property
    def trained_counts(self) -> npt.NDArray[np.int64]:
        """Learned tokens of each example, int64 `[examples]`, counted in one pass over the file."""
        counts = np.zeros(len(self), dtype=np.int64)
        for first in range(0, len(self), 1 << 16):
            last = min(len(self), first + (1 << 16))
            start = self._offsets[first]
            flags = self._trained[start : self._offsets[last]]
            sums = np.concatenate(([0], np.cumsum(flags, dtype=np.int64)))
            counts[first:last] = np.diff(sums[self._offsets[first : last + 1] - start])
        return counts


def _map(path: Path) -> npt.NDArray[Any]:
    # An empty array cannot be mapped.
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r" if path.stat().st_size > 128 else None)
    return array


class Spool:
    """All examples in source order, while it is not known yet which split they belong to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._tokens = (folder / "tokens.spool").open("w+b")
        self._trained = (folder / "trained.spool").open("w+b")
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._rows: list[npt.NDArray[np.int64]] = []

    def add(
        self,
        tokens: npt.NDArray[np.int32],
        trained: npt.NDArray[np.bool_],
        lengths: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Append examples: tokens and flags end to end, int64 `[examples]` lengths and row numbers."""
        self._tokens.write(tokens.tobytes())
        self._trained.write(trained.tobytes())
        self._lengths.append(lengths)
        self._rows.append(rows)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example so far."""
        return np.concatenate(self._lengths) if self._lengths else np.zeros(0, dtype=np.int64)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Row number of each example so far."""
        return np.concatenate(self._rows) if self._rows else np.zeros(0, dtype=np.int64)

    def write(self, folder: Path, names: Sequence[str], parts: npt.NDArray[np.int8]) -> list[int]:
        """Write one folder of arrays per split.

        Args:
            folder: gets a folder for each of `names`.
            names: the splits.
            parts: int8 `[examples]`, the place in `names` of each example's split.

        Returns:
            The learned tokens of each split.
        """
        lengths, rows = self.lengths, self.rows
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        targets: list[tuple[BinaryIO, BinaryIO]] = []
        try:
            for part, name in enumerate(names):
                chosen = parts == part
                target = folder / name
                target.mkdir(parents=True, exist_ok=True)
                ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths[chosen])))
                np.save(target / "offsets.npy", ends)
                np.save(target / "rows.npy", rows[chosen])
                targets.append(
                    (
                        _header(target / "tokens.npy", np.dtype(np.int32), int(ends[-1])),
                        _header(target / "trained.npy", np.dtype(np.bool_), int(ends[-1])),
                    )
                )
            _scatter(self._tokens, np.dtype(np.int32), offsets, parts, [pair[0] for pair in targets])
            return _scatter(self._trained, np.dtype(np.bool_), offsets, parts, [pair[1] for pair in targets])
        finally:
            for pair in targets:
                for file in pair:
                    file.close()

    def close(self) -> None:
        """Delete the spooled files."""
        for file in (self._tokens, self._trained):
            file.close()
        for name in ("tokens.spool", "trained.spool"):
            (self._folder / name).unlink(missing_ok=True)


def _header(path: Path, dtype: np.dtype[np.generic], length: int) -> BinaryIO:
    file = path.open("wb")
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file


def _scatter(
    spool: BinaryIO,
    dtype: np.dtype[np.generic],
    offsets: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int8],
    files: Sequence[BinaryIO],
) -> list[int]:
    """Copy each example's stretch of `spool` to its part's file, in order and in bounded memory.

    Returns:
        Per part, how many values are not zero.
    """
    spool.seek(0)
    counts = [0] * len(files)
    first = 0
    while first < len(parts):
        last = int(np.searchsorted(offsets, offsets[first] + _COPY, side="right")) - 1
        last = min(max(last, first + 1), len(parts))
        size = int(offsets[last] - offsets[first])
        data = np.frombuffer(spool.read(size * dtype.itemsize), dtype=dtype)
        owner = np.repeat(parts[first:last], np.diff(offsets[first : last + 1]))
        for part, file in enumerate(files):
            own = data[owner == part]
            counts[part] += int(np.count_nonzero(own))
            file.write(own.tobytes())
        first = last
    return counts
