"""Byte streams: what a file really is, whatever its ending says."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import zstandard

from finetune_trainer.data.faults import FileFault

HEAD = 1 << 16
"""Bytes looked at to find out what a file is."""
_ZSTD_STEP = 1 << 12
"""Compressed bytes taken at once: a block of 128 KiB can be as short as 4, so 128 MiB is the most to hold."""

_REFUSED = (
    (b"PK\x03\x04", "a ZIP archive (or an Office file)"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ\x00", "compressed with xz"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x04\x22\x4d\x18", "compressed with LZ4"),
    (b"ARROW1", "an Arrow file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF document"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"\xff\xfe\x00\x00", "encoded as UTF-32"),
    (b"\x00\x00\xfe\xff", "encoded as UTF-32"),
)
_REMEDY = "save the rows as JSON, JSON Lines, CSV or Parquet, plain or compressed with gzip or zstd"


class _Chained(io.RawIOBase):
    """Bytes already read, then the rest of the stream."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Utf16(io.RawIOBase):
    """UTF-16 with a byte order mark, read as UTF-8."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._source.read(1 << 16)
            try:
                self._ready = self._decoder.decode(data, final=not data).encode()
            except UnicodeDecodeError:
                raise FileFault(
                    "starts with a UTF-16 byte order mark but is not UTF-16; save it as UTF-8"
                ) from None
            if not data:
                break
        part = self._ready[: len(buffer)]
        self._ready = self._ready[len(part) :]
        buffer[: len(part)] = part
        return len(part)


class _Zstd(io.RawIOBase):
    """Frames of zstd one after the other, decompressed.

    The library's own stream reader takes the end of the file for the end of the data, wherever it comes:
    of a file that was cut short, the last rows would be missing and nobody told.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._inside = False
        self._left = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._left or self._source.read(_ZSTD_STEP)
            if not data:
                if self._inside:
                    raise FileFault("the zstd data is cut short: its last frame has no end")
                break
            self._ready = memoryview(self._frame.decompress(data))
            self._inside = not self._frame.eof
            self._left = b""
            if self._frame.eof:
                self._left = self._frame.unused_data
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        part = self._ready[: len(buffer)]
        self._ready = self._ready[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def peek(stream: BinaryIO, size: int = HEAD) -> tuple[bytes, io.BufferedReader]:
    """Return the first bytes and a stream that still starts with them."""
    head = b""
    while len(head) < size and (data := stream.read(size - len(head))):
        head += data
    return head, io.BufferedReader(_Chained(head, stream), buffer_size=1 << 18)


def unwrap(stream: BinaryIO) -> tuple[bytes, io.BufferedReader]:
    """Decompress and decode: return the first bytes of the content and the stream from its start.

    gzip, zstd and UTF-16 are taken off by content; a UTF-8 byte order mark is dropped.

    Raises:
        FileFault: an empty file, or one that is something else than rows.
    """
    head, plain = peek(stream)
    if not head:
        raise FileFault("is empty (0 bytes)")
    if head.startswith(b"\x1f\x8b"):
        head, plain = peek(cast("BinaryIO", gzip.GzipFile(fileobj=plain)))
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        head, plain = peek(cast("BinaryIO", _Zstd(plain)))
    kind = next((name for magic, name in _REFUSED if head.startswith(magic)), None)
    if kind is not None:
        raise FileFault(f"is {kind}, which is not read here; {_REMEDY}")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        head, plain = peek(cast("BinaryIO", _Utf16(plain)))
    if head.startswith(codecs.BOM_UTF8):
        plain.read(len(codecs.BOM_UTF8))
        head = head[len(codecs.BOM_UTF8) :]
    _refuse_pages(head)
    return head, plain


def _refuse_pages(head: bytes) -> None:
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        raise FileFault("is an HTML web page, not data: the link probably needs a login or a direct address")
    if start.startswith(b"<?xml"):
        raise FileFault(f"is an XML document, perhaps a server's error message; {_REMEDY}")
    if start.startswith(b"version https://git-lfs"):
        raise FileFault("is a Git LFS pointer, not the data: run `git lfs pull` where it was cloned")


@contextmanager
def readable() -> Iterator[None]:
    """Name the damage where a compressed stream cannot be read to its end.

    Raises:
        FileFault: in place of the decompressor's own errors.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFault(f"the gzip data is damaged or cut short ({error})") from None
    except zstandard.ZstdError as error:
        raise FileFault(f"the zstd data is damaged or cut short ({error})") from None
