"""JSON Lines, JSON arrays and objects one after the other, cut into records without parsing them.

The cutting is cheap and runs in one process; parsing happens where the rows are tokenised.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from finetune_trainer.data.faults import FileFault, RowFault
from finetune_trainer.data.records import parse

READ = 1 << 19
"""Bytes per read, and about the size of a block of rows."""
LONGEST = 1 << 28
"""Bytes of the longest record; a longer one means that a quote or a bracket is never closed."""

# A string, closed or running into the end of the buffer, or a bracket outside of strings.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:(")|\\?\Z)|[\[\]{}]', re.DOTALL)


def lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Cut into blocks of whole lines: yield the number of the first line (from 1) and the bytes.

    Raises:
        FileFault: a line longer than `LONGEST`.
    """
    number = 1
    pending: list[bytes] = []
    size = 0
    while data := stream.read(READ):
        cut = data.rfind(b"\n") + 1
        if not cut:
            pending.append(data)
            size += len(data)
            if size > LONGEST:
                raise FileFault(f"longer than {LONGEST >> 20} MiB: is a line feed missing?", number)
            continue
        block = b"".join((*pending, data[:cut]))
        pending, size = [data[cut:]], len(data) - cut
        yield number, block
        number += block.count(b"\n")
    if rest := b"".join(pending):
        yield number, rest


class _Cutter:
    """Finds where the records of an array, or of a sequence of objects, begin and end."""

    def __init__(self, stream: BinaryIO, *, array: bool) -> None:
        self._stream = stream
        self._array = array
        self._floor = 1 if array else 0
        self._buffer = b""
        self._position = 0
        self._behind = 0
        """Where the text behind the last record starts."""
        self.number = 0
        """Records found so far."""

    def records(self) -> Iterator[bytes]:
        """Yield the bytes of each record.

        Raises:
            FileFault: the text between records is not what separates records, or the file ends within one.
        """
        depth = start = 0
        while True:
            token = _TOKEN.search(self._buffer, self._position)
            if token is None or (token[0][:1] == b'"' and token[1] is None):
                # What is not closed yet is searched again from its start, with more behind it.
                held = self._behind if depth <= self._floor else start
                self._position = token.start() if token is not None else len(self._buffer)
                if not self._more(held):
                    self._ended(within=depth > self._floor or token is not None)
                    return
                start = 0
                continue
            mark, self._position = token[0], token.end()
            if mark in b"{[":
                if depth == self._floor:
                    start = token.start()
                    self._check_separator(self._buffer[self._behind : start])
                depth += 1
                if self._array and depth == 1:
                    self._behind = self._position
            elif mark in b"}]":
                depth -= 1
                if depth < self._floor:
                    self._check_end(self._buffer[self._behind : token.start()], mark)
                    return
                if depth == self._floor:
                    self.number += 1
                    self._behind = self._position
                    yield self._buffer[start : self._position]
            elif depth == self._floor:
                raise FileFault("is text, not an object with named columns", self.number + 1)

    def _more(self, held: int) -> bool:
        data = self._stream.read(max(READ, len(self._buffer) - held))
        self._buffer = self._buffer[held:] + data
        self._position -= held
        self._behind = max(0, self._behind - held)
        if len(self._buffer) > LONGEST:
            raise FileFault("not valid JSON: a quote or a bracket is never closed", self.number + 1)
        return bool(data)

    def _check_separator(self, text: bytes) -> None:
        found = text.strip()
        if not self._array and self.number == 0 and not found:
            return
        wanted = b"," if self._array and self.number else b""
        if found == wanted:
            return
        if not found:
            raise FileFault("not valid JSON: a comma is missing before this row", self.number + 1)
        raise FileFault(f"not valid JSON: unexpected {_shown(found)} before this row", self.number + 1)

    def _check_end(self, text: bytes, mark: bytes) -> None:
        stray = text.strip()
        # A comma behind the last row loses nothing, so it is forgiven.
        if mark != b"]" or (stray and not (stray == b"," and self.number)):
            raise FileFault(f"not valid JSON: unexpected {_shown(stray or mark)}", self.number + 1)
        rest = self._buffer[self._position :]
        while not rest.strip():
            rest = self._stream.read(READ)
            if not rest:
                return
        raise FileFault(
            "not valid JSON: more text behind the end of the list; rows go into one list or one a line",
            self.number + 1,
        )

    def _ended(self, *, within: bool) -> None:
        rest = self._buffer[self._behind :].strip()
        if within or rest.strip(b", \t\r\n"):
            raise FileFault("not valid JSON: the file is cut short within this row", self.number + 1)
        if self._array:
            raise FileFault("not valid JSON: the list is not closed; is the file cut short?", self.number)


def _shown(text: bytes) -> str:
    return repr(text[:20].decode(errors="replace"))


def objects(stream: BinaryIO, *, array: bool) -> Iterator[tuple[int, list[bytes]]]:
    """Cut an array, or objects that follow one another, into blocks: number of the first record, records.

    Raises:
        FileFault: the text between the records is not JSON; the records before it have been yielded.
    """
    cutter = _Cutter(stream, array=array)
    block: list[bytes] = []
    size = 0
    try:
        for record in cutter.records():
            block.append(record)
            size += len(record)
            if size >= READ:
                yield cutter.number - len(block) + 1, block
                block, size = [], 0
    except FileFault:
        if block:
            yield cutter.number - len(block) + 1, block
        raise
    if block:
        yield cutter.number - len(block) + 1, block


def spans_lines(head: bytes) -> bool:
    """Whether the first object of a file goes over several lines, so that lines are no records."""
    line, feed, _ = head.lstrip().partition(b"\n")
    if not feed:
        return False
    try:
        parse(line)
    except RowFault:
        pass
    else:
        return False
    try:
        record = next(_Cutter(io.BytesIO(head), array=False).records(), b"")
        parse(record)
    except (FileFault, RowFault):
        return False
    return b"\n" in record
