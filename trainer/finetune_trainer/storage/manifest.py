"""The manifest of a published folder: written last, and all that readers trust."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from finetune_trainer.storage.failures import damaged, local
from finetune_trainer.storage.uri import matches, safe_path


class FileEntry(BaseModel):
    """One published file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0)
    """Bytes."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The files of a published folder by relative path, and whatever else the publisher had to say."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: Literal[1] = 1
    files: dict[str, FileEntry]

    @field_validator("files")
    @classmethod
    def _stay_below(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        for path in files:
            safe_path(path)
        return files

    @classmethod
    def of(cls, files: Mapping[str, FileEntry], metadata: Mapping[str, object] | None = None) -> Manifest:
        """Make a manifest; `metadata` may hold anything that JSON can, but not `version` and `files`."""
        return cls.model_validate({**(metadata or {}), "version": 1, "files": dict(files)})

    @property
    def metadata(self) -> Mapping[str, object]:
        """Everything beside the version and the files."""
        return self.model_extra or {}

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files.values())

    def select(self, patterns: Sequence[str] | None) -> dict[str, FileEntry]:
        """The files that match any of the shell-style `patterns` (None: all)."""
        return {path: entry for path, entry in self.files.items() if matches(path, patterns)}

    @property
    def sha256(self) -> str:
        """Digest of the manifest's own bytes: it stands for the whole publication."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """The bytes of `manifest.json`, the same for equal manifests."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)
        return text.encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, uri: str) -> Manifest:
        """Read `manifest.json` found at `uri`.

        Raises:
            RunError: StorageUnavailable, it is not a manifest of this version.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise damaged(uri, f"not a manifest: {first['msg']}") from None


def describe(path: Path) -> FileEntry:
    """Measure a file: its size in bytes and its digest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), sha256=digest)


def check(path: Path, entry: FileEntry, uri: str) -> None:
    """Compare a local file with its manifest entry.

    Raises:
        RunError: StorageUnavailable, naming the file at `uri` and what differs.
    """
    with local(path, "read"):
        if path.is_symlink() or not path.is_file():
            raise damaged(uri, "the file is missing")
        size = path.stat().st_size
        if size != entry.size:
            raise damaged(uri, f"it has {size} bytes in place of {entry.size}")
        if describe(path) != entry:
            raise damaged(uri, "its sha256 is not the manifest's")
