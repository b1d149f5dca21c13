"""CSV and Parquet: rows as records, in blocks."""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from finetune_trainer.data.faults import FileFault
from finetune_trainer.data.records import Record

ROWS = 512
"""Rows in a block."""
_SPOOL = 1 << 26
"""Bytes of a Parquet file that are kept in memory where its stream cannot seek."""


def csv_rows(stream: BinaryIO, separator: str) -> Iterator[tuple[int, list[Record]]]:
    """Read CSV with a header: yield the number of the first row (from 1, without the header) and the rows.

    Raises:
        FileFault: not UTF-8, no header, or a row with more or fewer fields than the header.
    """
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    rows = csv.reader(text, delimiter=separator, strict=True)
    number = 0
    block: list[Record] = []
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(header)
        for fields in rows:
            if not fields:
                continue
            number += 1
            if len(fields) != len(header):
                raise FileFault(
                    f"CSV row with {len(fields)} fields under a header of {len(header)}; "
                    "fields that hold separators, quotes or line breaks need quotes around them",
                    number,
                )
            block.append(dict(zip(header, fields, strict=True)))
            if len(block) == ROWS:
                yield number - len(block) + 1, block
                block = []
    except UnicodeDecodeError as error:
        if block:
            yield number - len(block) + 1, block
        byte = error.object[error.start]
        raise FileFault(f"not UTF-8: byte 0x{byte:02x}; save the CSV file as UTF-8", number + 1) from None
    except csv.Error as error:
        if block:
            yield number - len(block) + 1, block
        raise FileFault(f"not valid CSV: {error}", number + 1) from None
    except FileFault:
        if block:
            yield number - len(block), block
        raise
    if block:
        yield number - len(block) + 1, block


def _check_header(header: list[str]) -> None:
    if not any(header):
        raise FileFault("is CSV without a header line")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise FileFault(f"is CSV whose header names the column {twice!r} more than once")


def parquet_rows(stream: BinaryIO) -> Iterator[tuple[int, list[Record]]]:
    """Read Parquet: yield the number of the first row (from 1) and the rows.

    Raises:
        FileFault: not a Parquet file, or a damaged one.
    """
    # A tenth of a second of imports that only readers of Parquet should pay.
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
        while data := stream.read(1 << 20):
            spool.write(data)
        spool.seek(0)
        number = 1
        try:
            table = pyarrow.parquet.ParquetFile(spool)
            for batch in table.iter_batches(batch_size=ROWS):
                rows = batch.to_pylist()
                if rows:
                    yield number, rows
                number += len(rows)
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise FileFault(f"cannot be read as Parquet: {error}", number if number > 1 else None) from None
