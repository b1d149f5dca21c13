"""Sources to blocks of records: finds the files, what each of them is, and cuts it up."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from finetune_trainer.data import json_rows, tables
from finetune_trainer.data.faults import FileFault, RowFault
from finetune_trainer.data.formats import check_wrapped
from finetune_trainer.data.records import Record, parse
from finetune_trainer.data.streams import readable, unwrap


class SourceEntry(Protocol):
    """A file of a source; `path` is relative to it."""

    @property
    def path(self) -> str:
        """Name of the file."""
        ...


class RowSource(Protocol):
    """What of `finetune_trainer.storage.Source` reading needs."""

    def entries(self) -> Sequence[SourceEntry]:
        """All files of the source."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A file's bytes, to be read once from the start."""
        ...

    def fingerprint(self) -> str:
        """Changes with the files."""
        ...


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of JSON Lines; `first` is the number of the first line, from 1."""

    first: int
    data: bytes

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield row numbers and bytes; blank lines hold no row."""
        for number, line in enumerate(self.data.split(b"\n"), self.first):
            if line and not line.isspace():
                yield number, line


@dataclass(frozen=True, slots=True)
class Objects:
    """Records of a JSON array, as bytes; `first` is the number of the first, from 1."""

    first: int
    data: list[bytes]

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield row numbers and bytes."""
        return iter(enumerate(self.data, self.first))


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of CSV or Parquet; `first` is the number of the first, from 1."""

    first: int
    data: list[Record]

    def records(self) -> Iterator[tuple[int, Record]]:
        """Yield row numbers and records."""
        return iter(enumerate(self.data, self.first))


Block = Lines | Objects | TableRows

_ROWS = re.compile(r"\.(jsonl?|ndjson|csv|tsv|parquet)(\.(gz|gzip|zst|zstd))?$", re.IGNORECASE)
_NOT_ROWS = re.compile(
    r"(^|/)([._][^/]*|dataset_infos?\.json|dataset_dict\.json|state\.json|manifest\.json|package\.json|"
    r"(tokenizer|special_tokens|generation|adapter)?_?(config|map)\.json|README[^/]*|LICENSE[^/]*)(/|$)",
    re.IGNORECASE,
)
_SEPARATED = re.compile(r"\.(csv|tsv)(\.\w+)?$", re.IGNORECASE)
_TRAIN = re.compile(r"(^|[/_.-])train(ing)?([/_.-]|$)", re.IGNORECASE)
_HELD_OUT = re.compile(r"(^|[/_.-])(test|validation|valid|val|dev|eval)([/_.-]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a source that hold rows, by name, and those left out as held-out splits."""

    files: list[str]
    held_out: list[str]


def select(paths: Sequence[str]) -> Selection:
    """Choose the files to read: one named file whatever its ending, else those that look like rows.

    Where a folder has files named for training and others named for validation or test, the
    latter are left out: they were kept apart on purpose.
    """
    if len(paths) == 1:
        return Selection(list(paths), [])
    rows = sorted(path for path in paths if _ROWS.search(path) and not _NOT_ROWS.search(path))
    held_out = [path for path in rows if _HELD_OUT.search(path) and not _TRAIN.search(path)]
    if held_out and any(_TRAIN.search(path) for path in rows):
        return Selection([path for path in rows if path not in held_out], held_out)
    return Selection(rows, [])


def blocks(stream: BinaryIO, path: str) -> Iterator[Block]:
    """Cut a file into blocks, finding out by content what it is.

    Raises:
        FileFault: not a file of rows, a damaged one, or one without rows; blocks before it are good.
    """
    with readable():
        head, plain = unwrap(stream)
        found = False
        for block in _parts(head, plain, path):
            found = found or any(True for _ in itertools.islice(block.records(), 1))
            yield block
    if not found:
        raise FileFault("is empty: there are no rows in it")


def _parts(head: bytes, stream: BinaryIO, path: str) -> Iterator[Block]:
    start = head.lstrip()
    if head.startswith(b"PAR1"):
        yield from (TableRows(first, rows) for first, rows in tables.parquet_rows(stream))
    elif match := _SEPARATED.search(path):
        separator = "\t" if match[1].lower() == "tsv" else _separator(head)
        yield from (TableRows(first, rows) for first, rows in tables.csv_rows(stream, separator))
    elif start.startswith(b"["):
        yield from (Objects(first, rows) for first, rows in json_rows.objects(stream, array=True))
    elif json_rows.spans_lines(head):
        yield from (Objects(first, rows) for first, rows in json_rows.objects(stream, array=False))
    elif not start.startswith(b"{") and start:
        raise FileFault(
            f"starts with {start[:20].decode(errors='replace')!r}, which is neither JSON nor Parquet; "
            "CSV files need the ending .csv"
        )
    else:
        if wrapper := _WRAPPER.match(head):
            _check_wrapper(head, wrapper[1].decode(errors="replace"))
        yield from (Lines(first, data) for first, data in json_rows.lines(stream))


# An object that starts with plain values and then a list of objects: the wrapper of a pretty-printed file.
_WRAPPER = re.compile(
    rb'\s*\{(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[\d.eE+-]+|true|false|null)\s*,)*\s*"([^"\\]+)"\s*:\s*\[\s*\{'
)


def _check_wrapper(head: bytes, key: str) -> None:
    line = head.lstrip().partition(b"\n")[0]
    try:
        parse(line)
    except RowFault:
        # The first line is not a row; with a list of objects under a key of no format, it is a wrapper.
        keys = [name.decode(errors="replace") for name in re.findall(rb'"([^"\\]+)"\s*:', head[: 1 << 10])]
        check_wrapped({**dict.fromkeys(keys[: keys.index(key)] if key in keys else []), key: [{}]})


def _separator(head: bytes) -> str:
    line = head.partition(b"\n")[0].decode(errors="replace")
    return max(",;\t|", key=line.count)


def first_record(block: Block) -> Record | None:
    """The first record of a block that can be read."""
    for _, raw in block.records():
        if isinstance(raw, dict):
            return raw
        try:
            return parse(raw)
        except RowFault:
            continue
    return None
