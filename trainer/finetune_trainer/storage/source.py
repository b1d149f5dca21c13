"""The reading side: a file, a folder, a prefix of a bucket or a hub repository, all as entries."""

from __future__ import annotations

import abc
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.failures import Purpose
from finetune_trainer.storage.uri import Location, matches, safe_path


@dataclass(frozen=True, order=True)
class Entry:
    """One file of a source: its path below the source, its size in bytes, and a tag that changes with it."""

    path: str
    size: int
    etag: str


class Source(abc.ABC):
    """Something to read from; subclasses say how.

    Methods raise RunError: MODEL_UNAVAILABLE or INVALID_DATASET (by `purpose`) for what is not
    there, STORAGE_DENIED for what may not be read, STORAGE_UNAVAILABLE where retries did not help.
    """

    def __init__(self, location: Location, purpose: Purpose) -> None:
        self.location = location
        self.purpose: Purpose = purpose

    @functools.cached_property
    def _entries(self) -> list[Entry]:
        found = sorted(self._list())
        if not found:
            raise self._absent("holds no files")
        for entry in found:
            try:
                safe_path(entry.path)
            except ValueError as error:
                raise self._absent(f"is refused: {error}") from None
        return found

    def entries(self) -> list[Entry]:
        """All files, sorted by path; listed once and then remembered."""
        return list(self._entries)

    def fingerprint(self) -> str:
        """A digest over paths, sizes and tags: different when the content seen by `entries` changed."""
        rows = [[entry.path, entry.size, entry.etag] for entry in self._entries]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def select(self, patterns: Sequence[str] | None) -> list[Entry]:
        """The entries that match any of the shell-style `patterns` (None: all).

        Raises:
            RunError: none does.
        """
        chosen = [entry for entry in self._entries if matches(entry.path, patterns)]
        if not chosen and patterns is not None:
            raise self._absent(f"holds no file that matches {', '.join(patterns)}")
        return chosen

    def find(self, path: str) -> Entry:
        """The entry at `path`.

        Raises:
            RunError: there is none.
        """
        for entry in self._entries:
            if entry.path == path:
                return entry
        raise self._absent(f"holds no file `{path}`")

    @abc.abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open an entry for reading from its start, with bounded memory."""

    @abc.abstractmethod
    def fetch(self, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """Have the selected entries as files of this machine; returns the folder they are in.

        What is downloaded goes below `target`, in a folder for this very content, and each file
        takes its name only when it is complete: a killed download is continued, never mistaken
        for a finished one. Folders of this machine are returned as they are.
        """

    @abc.abstractmethod
    def _list(self) -> list[Entry]:
        """List all files; an empty list is reported by the caller."""

    def _absent(self, what: str) -> RunError:
        reason = ExitReason.MODEL_UNAVAILABLE if self.purpose == "model" else ExitReason.INVALID_DATASET
        return RunError(reason, f"{self.purpose} {self.location.uri} {what}")
