"""Reading from and publishing to object stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from finetune_trainer.config.layout import MANIFEST
from finetune_trainer.storage.bucket import CHUNK, Bucket, Stat
from finetune_trainer.storage.credentials import Credentials
from finetune_trainer.storage.failures import Purpose, damaged, local, missing
from finetune_trainer.storage.manifest import FileEntry, Manifest, check, describe
from finetune_trainer.storage.output import Output, files_below
from finetune_trainer.storage.pool import Pool
from finetune_trainer.storage.source import Entry, Source
from finetune_trainer.storage.uri import Location, join, safe_path

_PROBE = ".finetune-writable"


class ObjectSource(Source):
    """One object, or everything below a prefix."""

    def __init__(self, location: Location, keys: Credentials, purpose: Purpose, patience: float) -> None:
        super().__init__(location, purpose)
        self._bucket = Bucket(location, keys, purpose, patience)
        self._single = False

    def open(self, path: str) -> BinaryIO:
        """Stream the object by ranges; it fails rather than mix two versions of it."""
        return self._bucket.open(self._stat(self.find(path)))

    def fetch(self, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """Download into a folder named after the content; processes that share it take turns."""
        identity = f"{self._bucket.endpoint} {self.location.uri} {self.fingerprint()}"
        folder = target / "objects" / hashlib.sha256(identity.encode()).hexdigest()[:32]
        selected = self.select(patterns)
        with local(folder, "write"):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_suffix(".lock")):
                self._bucket.download(
                    [
                        (self._stat(entry), folder / entry.path)
                        for entry in selected
                        if not _has_size(folder / entry.path, entry.size)
                    ]
                )
        return folder

    def _list(self) -> list[Entry]:
        single = self._bucket.stat("") if self.location.path else None
        if single:
            self._single = True
            return [Entry(self.location.path.rpartition("/")[2], single.size, single.etag)]
        found = [Entry(stat.key, stat.size, stat.etag) for stat in self._bucket.list()]
        if not found:
            raise missing(self.location.uri, self.purpose, "check the path and the bucket")
        return found

    def _stat(self, entry: Entry) -> Stat:
        return Stat("" if self._single else entry.path, entry.size, entry.etag)


class ObjectOutput(Output):
    """Publishes files first and the manifest last, by a conditional write."""

    def __init__(self, location: Location, keys: Credentials, patience: float) -> None:
        super().__init__(location)
        self._bucket = Bucket(location, keys, None, patience)

    def upload(self, folder: Path, prefix: str) -> dict[str, FileEntry]:
        """Upload in parts, several files at a time, each read once."""
        paths = files_below(folder)
        with Pool() as pool:

            def upload(path: str) -> FileEntry:
                return self._upload(folder / path, join(safe_path(prefix), path), pool)

            return dict(zip(paths, pool.run(upload, paths), strict=True))

    def seal(
        self, prefix: str, files: Mapping[str, FileEntry], metadata: Mapping[str, object] | None = None
    ) -> Manifest:
        """Check that all is there with its size, then write the manifest unless there is one."""
        ours = Manifest.of(files, metadata)
        if existing := self.manifest(prefix):
            return self._agree(prefix, existing, ours)
        self._stats(prefix, files)
        if self._bucket.create(join(prefix, MANIFEST), ours.encode()):
            return ours
        # Refused by the condition: another writer, or our own write whose answer was lost.
        return self._agree(prefix, self._require(prefix), ours)

    def manifest(self, prefix: str) -> Manifest | None:
        """Read `manifest.json`."""
        data = self._bucket.read(join(safe_path(prefix), MANIFEST))
        return None if data is None else Manifest.decode(data, self.uri(prefix, MANIFEST))

    def published(self, prefix: str) -> list[str]:
        """Look for manifests one level down."""
        names = (stat.key.removeprefix(f"{prefix}/").split("/") for stat in self._bucket.list(prefix))
        return sorted(parts[0] for parts in names if len(parts) == 2 and parts[1] == MANIFEST)

    def fetch(self, prefix: str, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """Download what is not yet in `target`, then check it."""
        files = self._require(prefix).select(patterns)
        stats = self._stats(prefix, files)
        wanted = {path: entry for path, entry in files.items() if not _holds(target / path, entry)}
        self._bucket.download([(stats[path], target / path) for path in wanted])
        for path, entry in wanted.items():
            check(target / path, entry, self.uri(prefix, path))
        return target

    def remove(self, prefix: str) -> None:
        """Delete the manifest first, then the rest."""
        self._bucket.delete([join(safe_path(prefix), MANIFEST)])
        self._bucket.delete([stat.key for stat in self._bucket.list(prefix)])

    def check_writable(self) -> None:
        """Write and delete an empty object."""
        self._bucket.write(_PROBE, b"")
        self._bucket.delete([_PROBE])

    def _upload(self, file: Path, key: str, pool: Pool) -> FileEntry:
        with local(file, "read"):
            size = file.stat().st_size
            if size <= CHUNK:
                data = file.read_bytes()
                self._bucket.write(key, data)
                return FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        reading = _Reading(file, pool)
        self._bucket.write_stream(key, reading, size)
        return FileEntry(size=reading.size, sha256=reading.digest.hexdigest())

    def _stats(self, prefix: str, files: Mapping[str, FileEntry]) -> dict[str, Stat]:
        """What the bucket holds of `files`.

        Raises:
            RunError: StorageUnavailable, one is missing or has another size.
        """
        found = {stat.key: stat for stat in self._bucket.list(prefix)}
        stats = {}
        for path, entry in files.items():
            stat = found.get(join(prefix, path))
            if stat is None:
                raise damaged(self.uri(prefix, path), "the file is missing")
            if stat.size != entry.size:
                raise damaged(self.uri(prefix, path), f"it has {stat.size} bytes in place of {entry.size}")
            stats[path] = stat
        return stats


class _Reading:
    """A file's chunks, measured as they pass; it breaks off when the pool stops."""

    def __init__(self, file: Path, pool: Pool) -> None:
        self._file, self._pool = file, pool
        self.digest = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        with local(self._file, "read"), self._file.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                if self._pool.stopped.is_set():
                    raise InterruptedError(f"upload of {self._file} was interrupted")
                self.digest.update(chunk)
                self.size += len(chunk)
                yield chunk


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _holds(path: Path, entry: FileEntry) -> bool:
    return _has_size(path, entry.size) and describe(path) == entry
