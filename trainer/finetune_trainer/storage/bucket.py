"""A bucket behind obstore: `s3://`, `gs://` and `az://` with bounded memory, retries and clear errors."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.connect import connect, endpoint_of
from finetune_trainer.storage.credentials import Credentials
from finetune_trainer.storage.failures import Purpose, local, object_error
from finetune_trainer.storage.pool import Pool
from finetune_trainer.storage.uri import Location, join

CHUNK = 8 * 2**20
"""Bytes per request, both ways."""
_PARTS_AT_ONCE = 4
_MOST_PARTS = 9000  # of the 10,000 that S3 allows, the rest for rounding


@dataclass(frozen=True)
class Stat:
    """What a bucket says of one object; `key` is relative to the URI's path."""

    key: str
    size: int
    etag: str


class Bucket:
    """The objects below a location. Keys are relative to the location's path.

    Args:
        location: an s3, gs or az URI.
        keys: its credentials.
        purpose: what a source is opened for, for the reason of errors; None for an output.
        patience: seconds for which a request to an unavailable server is repeated.

    Raises:
        RunError: from every method: STORAGE_DENIED, STORAGE_UNAVAILABLE, or the purpose's own reason.
    """

    def __init__(
        self, location: Location, keys: Credentials, purpose: Purpose | None, patience: float
    ) -> None:
        self.location = location
        self.endpoint = endpoint_of(location, keys)
        self._purpose = purpose
        self._store = connect(location, keys, self.endpoint, patience)

    def stat(self, key: str) -> Stat | None:
        """Look at one object; None if there is none."""
        with self._translated(key):
            try:
                meta = obstore.head(self._store, self._key(key))
            except FileNotFoundError:
                return None
        return Stat(key, meta["size"], meta["e_tag"] or "")

    def list(self, prefix: str = "") -> list[Stat]:
        """All objects below `prefix`, sorted by key; markers of folders are left out."""
        skip = len(join(self.location.path, "x")) - 1
        with self._translated(prefix):
            metas = obstore.list(self._store, self._key(prefix) or None).collect()
        found = [Stat(meta["path"][skip:], meta["size"], meta["e_tag"] or "") for meta in metas]
        folders = {parent for stat in found for parent in _parents(stat.key)}
        return sorted(
            (stat for stat in found if stat.size or stat.key not in folders), key=lambda stat: stat.key
        )

    def read(self, key: str) -> bytes | None:
        """The whole of a small object; None if there is none."""
        with self._translated(key):
            try:
                return bytes(obstore.get(self._store, self._key(key)).bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def read_range(self, stat: Stat, start: int, length: int) -> memoryview:
        """Some bytes of an object as it was when `stat` was taken.

        Raises:
            RunError: StorageUnavailable, it has been replaced since.
        """
        end = min(start + length, stat.size)
        options: obstore.GetOptions = {"if_match": stat.etag} if stat.etag else {}
        with self._translated(stat.key):
            try:
                data = self._get(stat, start, end, options)
            except PreconditionError:
                raise RunError(
                    ExitReason.STORAGE_UNAVAILABLE,
                    f"{self._uri(stat.key)} was replaced while it was being read",
                ) from None
        if len(data) != end - start:
            raise RunError(
                ExitReason.STORAGE_UNAVAILABLE,
                f"{self._uri(stat.key)}: {len(data)} bytes arrived in place of {end - start}",
            )
        return data

    def _get(self, stat: Stat, start: int, end: int, options: obstore.GetOptions) -> memoryview:
        key = self._key(stat.key)
        if (start, end) != (0, stat.size):
            try:
                return memoryview(
                    obstore.get(self._store, key, options={**options, "range": (start, end)}).bytes()
                )
            except BaseError as error:
                if "non-partial" not in str(error):
                    raise
        # All of it, or a server that does not answer ranges by the book: there the price is time.
        data = bytearray()
        position = 0
        for chunk in obstore.get(self._store, key, options=options).stream(min_chunk_size=CHUNK):
            data += chunk[max(0, start - position) : max(0, end - position)]
            position += len(chunk)
            if position >= end:
                break
        return memoryview(data)

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one already; False if there is.

        A server that does not know the condition gets a plain write.
        """
        with self._translated(key):
            try:
                obstore.put(self._store, self._key(key), data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            except BaseError as error:
                if "status code: 501" not in str(error):
                    raise
                self.write(key, data)
        return True

    def write(self, key: str, data: bytes) -> None:
        """Write a small object."""
        with self._translated(key):
            obstore.put(self._store, self._key(key), data, use_multipart=False)

    def write_stream(self, key: str, chunks: Iterable[bytes], size: int) -> None:
        """Write an object of about `size` bytes in parts; an exception from `chunks` aborts it."""
        with self._translated(key):
            obstore.put(
                self._store,
                self._key(key),
                chunks,
                use_multipart=True,
                chunk_size=max(CHUNK, size // _MOST_PARTS),
                max_concurrency=_PARTS_AT_ONCE,
            )

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        for key in keys:
            with self._translated(key), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, self._key(key))

    def download(self, wanted: Sequence[tuple[Stat, Path]]) -> None:
        """Bring objects to files: small ones side by side, large ones by ranges side by side."""
        with Pool() as pool:
            pool.run(self._download, [(stat, target, None) for stat, target in wanted if stat.size <= CHUNK])
            for stat, target in wanted:
                if stat.size > CHUNK:
                    self._download((stat, target, pool))

    def open(self, stat: Stat) -> BinaryIO:
        """Read an object as a stream that can seek."""
        return io.BufferedReader(_Ranges(self, stat), CHUNK)

    def _download(self, job: tuple[Stat, Path, Pool | None]) -> None:
        """Write beside the target and sync; the file gets its name when it is whole."""
        stat, target, pool = job
        partial = target.with_name(f".{target.name}.part")
        with local(target, "write"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                copy = functools.partial(self._copy_range, stat, file.fileno(), target)
                if pool is not None:
                    pool.run(copy, range(0, stat.size, CHUNK))
                elif stat.size:
                    copy(0)
                os.fsync(file.fileno())
            partial.rename(target)

    def _copy_range(self, stat: Stat, descriptor: int, target: Path, start: int) -> None:
        data = self.read_range(stat, start, CHUNK)
        with local(target, "write"):
            while data:
                written = os.pwrite(descriptor, data, start)
                data, start = data[written:], start + written

    def _key(self, key: str) -> str:
        return join(self.location.path, key)

    def _uri(self, key: str) -> str:
        return f"{self.location.scheme}://{join(self.location.host, self._key(key))}"

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise object_error(
                error,
                self._uri(key),
                bucket=self.location.host,
                endpoint=self.endpoint,
                purpose=self._purpose,
            ) from None


class _Ranges(io.RawIOBase):
    def __init__(self, bucket: Bucket, stat: Stat) -> None:
        self._bucket, self._stat, self._position = bucket, stat, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._stat.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readall(self) -> bytes:
        # The inherited one asks for 8 KiB at a time.
        pieces = []
        while piece := self.read(CHUNK):
            pieces.append(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._stat.size:
            return 0
        data = self._bucket.read_range(self._stat, self._position, min(len(buffer), CHUNK))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _parents(key: str) -> Iterator[str]:
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key
