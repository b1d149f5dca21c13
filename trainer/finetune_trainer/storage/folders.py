"""Folders of this machine and mounted claims: `file://` and `pvc://`, read and written."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.config.layout import MANIFEST
from finetune_trainer.storage.failures import Purpose, damaged, local, missing
from finetune_trainer.storage.manifest import FileEntry, Manifest, check
from finetune_trainer.storage.output import Output, files_below
from finetune_trainer.storage.source import Entry, Source
from finetune_trainer.storage.uri import Location, safe_path

_CHUNK = 8 * 2**20
_SHARED = "shared"


class FolderSource(Source):
    """A file or a folder. Links are followed, but from a claim they may not lead out of it."""

    def __init__(self, location: Location, purpose: Purpose) -> None:
        super().__init__(location, purpose)
        _require_mounted(location)
        self._root = location.folder

    def open(self, path: str) -> BinaryIO:
        """Open an entry."""
        file = self._base / safe_path(path)
        self._require_inside(file)
        with local(file, "read"):
            return file.open("rb")

    def fetch(self, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """The folder itself, or the folder that a single file is in."""
        self.select(patterns)
        return self._base

    @property
    def _base(self) -> Path:
        return self._root.parent if self._root.is_file() else self._root

    def _list(self) -> list[Entry]:
        with local(self._root, "read"):
            if not self._root.exists():
                raise missing(self.location.uri, self.purpose, "check the path")
            files = [self._root] if self._root.is_file() else list(self._walk())
            return [self._entry(file) for file in files]

    def _walk(self) -> Iterator[Path]:
        seen: set[str] = set()
        for folder, folders, names in os.walk(self._root, followlinks=True, onerror=_raise):
            if (real := os.path.realpath(folder)) in seen:
                folders.clear()
                continue
            seen.add(real)
            yield from (file for name in names if (file := Path(folder, name)).is_file() or file.is_symlink())

    def _entry(self, file: Path) -> Entry:
        self._require_inside(file)
        with local(file, "read"):
            status = file.stat()
        return Entry(file.relative_to(self._base).as_posix(), status.st_size, str(status.st_mtime_ns))

    def _require_inside(self, file: Path) -> None:
        if self.location.scheme == "pvc" and not file.resolve().is_relative_to(self.location.claim.resolve()):
            raise RunError(
                ExitReason.STORAGE_DENIED, f"{file} is a link that leads out of claim `{self.location.host}`"
            )


class FolderOutput(Output):
    """Publishes by one rename: files are written and synced in a hidden folder beside the final one."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._root = location.folder

    def publish(self, folder: Path, prefix: str, metadata: Mapping[str, object] | None = None) -> Manifest:
        """Publish from a hidden folder of its own, so that racing writers cannot mix."""
        staging = self._staging(prefix, uuid.uuid4().hex)
        try:
            return self._commit(staging, prefix, self._copy(folder, staging), metadata)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def upload(self, folder: Path, prefix: str) -> dict[str, FileEntry]:
        """Copy into the hidden folder that all writers of `prefix` share."""
        return self._copy(folder, self._staging(prefix, _SHARED))

    def seal(
        self, prefix: str, files: Mapping[str, FileEntry], metadata: Mapping[str, object] | None = None
    ) -> Manifest:
        """Rename the shared hidden folder, less what an earlier attempt left in it."""
        return self._commit(self._staging(prefix, _SHARED), prefix, files, metadata)

    def manifest(self, prefix: str) -> Manifest | None:
        """Read `manifest.json`."""
        path = self._folder(prefix) / MANIFEST
        with local(path, "read"):
            try:
                return Manifest.decode(path.read_bytes(), self.uri(prefix, MANIFEST))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def published(self, prefix: str) -> list[str]:
        """List folders with a manifest."""
        found = self._folder(prefix).glob(f"*/{MANIFEST}")
        return sorted(path.parent.name for path in found if not path.parent.name.startswith("."))

    def fetch(self, prefix: str, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """Check the published folder where it is."""
        folder = self._folder(prefix)
        for path, entry in self._require(prefix).select(patterns).items():
            check(folder / path, entry, self.uri(prefix, path))
        return folder

    def remove(self, prefix: str) -> None:
        """Rename out of sight first, then delete; hidden leftovers of killed writers go as well."""
        folder = self._folder(prefix)
        gone = self._staging(prefix, uuid.uuid4().hex)
        with local(folder, "remove"):
            if folder.exists():
                folder.rename(gone)
            for hidden in list(folder.parent.iterdir()) if folder.parent.exists() else []:
                if hidden.name.startswith(f".{folder.name}."):
                    shutil.rmtree(hidden)

    def check_writable(self) -> None:
        """Write, sync and delete a tiny file."""
        _require_mounted(self.location)
        with local(self._root, "write"):
            self._root.mkdir(parents=True, exist_ok=True)
            probe = self._root / f".writable-{uuid.uuid4().hex}"
            try:
                _write(probe, b"\n")
            finally:
                probe.unlink(missing_ok=True)

    def _folder(self, prefix: str) -> Path:
        return self._root / safe_path(prefix)

    def _staging(self, prefix: str, writer: str) -> Path:
        final = self._folder(prefix)
        return final.with_name(f".{final.name}.{writer}")

    def _copy(self, folder: Path, staging: Path) -> dict[str, FileEntry]:
        _require_mounted(self.location)
        return {path: _copy_file(folder / path, staging / path) for path in files_below(folder)}

    def _commit(
        self,
        staging: Path,
        prefix: str,
        files: Mapping[str, FileEntry],
        metadata: Mapping[str, object] | None,
    ) -> Manifest:
        ours = Manifest.of(files, metadata)
        final = self._folder(prefix)
        if existing := self.manifest(prefix):
            shutil.rmtree(staging, ignore_errors=True)
            return self._agree(prefix, existing, ours)
        with local(final, "write"):
            staging.mkdir(parents=True, exist_ok=True)
            self._tidy(staging, prefix, files)
            _write(staging / MANIFEST, ours.encode())
            for folder in {staging, *(path for path in staging.rglob("*") if path.is_dir())}:
                _sync(folder)
            try:
                staging.rename(final)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            else:
                _sync(final.parent)
                return ours
        # Another writer was quicker, or something that nobody published is in the way.
        if existing := self.manifest(prefix):
            return self._agree(prefix, existing, ours)
        raise RunError(
            ExitReason.STORAGE_DENIED, f"{final} exists and was not published by a run", "move it away"
        )

    def _tidy(self, staging: Path, prefix: str, files: Mapping[str, FileEntry]) -> None:
        """Require every file, and drop whatever a killed attempt left beside them."""
        for path, entry in files.items():
            file = staging / path
            if not file.is_file() or file.stat().st_size != entry.size:
                raise damaged(self.uri(prefix, path), "the file was not uploaded")
        for file in staging.rglob("*"):
            if not file.is_dir() and file.relative_to(staging).as_posix() not in files:
                file.unlink()


def _require_mounted(location: Location) -> None:
    if location.scheme == "pvc" and not location.claim.is_dir():
        raise RunError(
            ExitReason.STORAGE_DENIED,
            f"claim `{location.host}` is not mounted: {location.claim} does not exist",
            "without a cluster, set FINETUNE_CLAIMS to a folder that holds one folder per claim",
        )


def _copy_file(source: Path, target: Path) -> FileEntry:
    """Copy with a digest on the way; the target gets its name when it is complete and on disk."""
    digest = hashlib.sha256()
    partial = target.with_name(f".{target.name}.part")
    with local(target, "write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reader, partial.open("wb") as writer:
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                writer.write(chunk)
            writer.flush()
            os.fsync(writer.fileno())
            size = writer.tell()
        partial.rename(target)
    return FileEntry(size=size, sha256=digest.hexdigest())


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error
