"""The writing side: folders that are published whole or not at all."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.config.layout import MANIFEST
from finetune_trainer.storage.failures import local
from finetune_trainer.storage.manifest import FileEntry, Manifest
from finetune_trainer.storage.uri import Location, join


class Output(abc.ABC):
    """A place to publish under; `prefix` is a path below its URI, such as `<uid>/prepared`.

    A prefix is published by one writer (`publish`) or by several (each calls `upload` with its own
    files, then one calls `seal` with the files of all). It counts as published once its manifest is
    there, and readers go by the manifest alone. Prefixes have to be unique per attempt: on servers
    that ignore conditional writes nothing else keeps two different publications apart.

    Methods raise RunError: STORAGE_DENIED, or STORAGE_UNAVAILABLE where retries did not help, where
    the disk is full, or where something published is damaged.
    """

    def __init__(self, location: Location) -> None:
        self.location = location

    def publish(self, folder: Path, prefix: str, metadata: Mapping[str, object] | None = None) -> Manifest:
        """Publish all files of `folder` under `prefix`; repeating it with the same files is harmless.

        Raises:
            RunError: StorageDenied, other files are published there already.
        """
        return self.seal(prefix, self.upload(folder, prefix), metadata)

    @abc.abstractmethod
    def upload(self, folder: Path, prefix: str) -> dict[str, FileEntry]:
        """Bring the files of `folder` to `prefix`, not yet published; returns them by relative path."""

    @abc.abstractmethod
    def seal(
        self, prefix: str, files: Mapping[str, FileEntry], metadata: Mapping[str, object] | None = None
    ) -> Manifest:
        """Publish what was uploaded under `prefix`: `files` of all writers together.

        Raises:
            RunError: StorageDenied, other files are published there already;
                StorageUnavailable, one of `files` was not uploaded.
        """

    @abc.abstractmethod
    def manifest(self, prefix: str) -> Manifest | None:
        """The manifest of a published prefix, or None."""

    @abc.abstractmethod
    def published(self, prefix: str) -> list[str]:
        """Names of the published prefixes directly below `prefix`, sorted."""

    @abc.abstractmethod
    def fetch(self, prefix: str, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """Have the files of a published prefix in a folder of this machine, sizes and digests checked.

        Object stores download into `target`; a folder is checked where it is and returned itself.

        Args:
            prefix: what to fetch.
            target: where downloads go; files there that are right already are kept.
            patterns: shell-style patterns of the files wanted; None means all.

        Raises:
            RunError: StorageUnavailable, it is not published, or a file differs from its manifest.
        """

    @abc.abstractmethod
    def remove(self, prefix: str) -> None:
        """Withdraw and delete `prefix`; a killed removal leaves it unpublished, never half trusted."""

    @abc.abstractmethod
    def check_writable(self) -> None:
        """Write and delete a tiny object, before anything expensive begins."""

    def uri(self, prefix: str, path: str = "") -> str:
        """The URI of something below this output, for messages and for other programs."""
        return f"{self.location.uri.rstrip('/')}/{join(prefix, path)}"

    def _require(self, prefix: str) -> Manifest:
        manifest = self.manifest(prefix)
        if manifest is None:
            raise RunError(ExitReason.STORAGE_UNAVAILABLE, f"{self.uri(prefix)} is not published")
        return manifest

    def _agree(self, prefix: str, existing: Manifest, ours: Manifest) -> Manifest:
        """Settle a second publication: the same files mean it was ours, or as good as ours."""
        if existing.files != ours.files:
            raise RunError(
                ExitReason.STORAGE_DENIED,
                f"{self.uri(prefix)} is published already, with other files",
                "give this run an output of its own, or remove what is there",
            )
        return existing


def files_below(folder: Path) -> list[str]:
    """Relative paths of the files to publish, sorted; a manifest from an earlier life is left out.

    Raises:
        RunError: InvalidConfiguration, the folder holds a link or something else that is no file.
    """
    paths = []
    with local(folder, "read"):
        for path in sorted(folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                continue
            if path.is_symlink() or not path.is_file():
                raise RunError(ExitReason.INVALID_CONFIGURATION, f"{path} is not a regular file")
            paths.append(path.relative_to(folder).as_posix())
    return [path for path in paths if path != MANIFEST]
