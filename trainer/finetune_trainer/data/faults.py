"""What can be wrong with data: a row at fault, a file at fault, a row that teaches nothing."""

from __future__ import annotations

from dataclasses import dataclass

LISTED_PER_FILE = 20
"""Faults of one file that are kept word for word; the rest are counted."""


class RowFault(Exception):  # noqa: N818 - a fault of the data, not an error of the program
    """A row cannot be used as it is and the dataset is refused.

    Args:
        reason: what is wrong, in one sentence without file and row.
        syntax: the bytes are not JSON, so that in an array the rows behind it cannot be counted.
    """

    def __init__(self, reason: str, *, syntax: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.syntax = syntax


class FileFault(Exception):  # noqa: N818
    """Reading a file has to stop: at `row`, or as a whole where `row` is None."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


class SkippedRow(Exception):  # noqa: N818
    """A well-formed row has nothing to learn from: it is left out and reported."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as people read it; `row` counts from 1, None means the file as a whole."""

    file: str
    row: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}, row {self.row}" if self.row is not None else self.file
        return f"{where}: {self.reason}"


class FaultLog:
    """Faults in the order of the files, bounded per file."""

    def __init__(self) -> None:
        self._listed: dict[int, list[Fault]] = {}
        self.total = 0
        """All faults, listed or not."""

    def add(self, place: int, fault: Fault) -> None:
        """Keep or count one fault of the file at `place` in the order of the files."""
        self.total += 1
        listed = self._listed.setdefault(place, [])
        if len(listed) < LISTED_PER_FILE:
            listed.append(fault)

    @property
    def listed(self) -> list[Fault]:
        """The faults that are kept word for word, by file and then by row."""
        return [fault for _, faults in sorted(self._listed.items()) for fault in faults]

    def lines(self) -> list[str]:
        """One line a fault, then one with the count of the rest."""
        lines = [str(fault) for fault in self.listed]
        rest = self.total - len(lines)
        return [*lines, f"and {rest} more"] if rest else lines


@dataclass(frozen=True, slots=True)
class Skipped:
    """One row that was left out, and why."""

    file: str
    row: int
    reason: str
