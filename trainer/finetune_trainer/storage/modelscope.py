"""`modelscope://`: repositories of ModelScope, through its client library `modelscope-hub`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from filelock import FileLock
from modelscope_hub import HubApi, HubConfig, errors

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.credentials import Credentials
from finetune_trainer.storage.failures import Purpose, local, local_error
from finetune_trainer.storage.hubs import (
    Repository,
    cache_folder,
    gated,
    hub_unavailable,
    no_repository,
    repeated,
)
from finetune_trainer.storage.source import Entry, Source
from finetune_trainer.storage.uri import Location

Result = TypeVar("Result")


class ModelScopeSource(Source):
    """A model or data set repository. Its default branch is `master`, which `main` stands for."""

    def __init__(
        self, location: Location, keys: Credentials, revision: str, purpose: Purpose, patience: float
    ) -> None:
        super().__init__(location, purpose)
        self._repository = Repository.parse(location, "master" if revision == "main" else revision)
        # An empty token in place of None, and folders of our own: nothing is taken from a login of
        # another program, whose cookies the client would unpickle.
        cache = cache_folder() / "modelscope"
        config = HubConfig(
            endpoint=keys.get("MODELSCOPE_ENDPOINT"),
            cache_dir=cache,
            config_dir=cache / "client",
            token=keys.get("MODELSCOPE_API_TOKEN", ""),
        )
        self._api = HubApi(config=config)
        self._endpoint = str(config.endpoint)
        self._patience = patience
        self._paths: dict[str, str] = {}
        logging.getLogger("modelscope_hub").setLevel(logging.WARNING)

    def open(self, path: str) -> BinaryIO:
        """Download the file into the cache, resumed and checked by the client, and open it there."""
        return (self._download(cache_folder(), [self.find(path)]) / path).open("rb")

    def fetch(self, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """A folder below `target` for the files as they are listed now: a moved branch gets another one."""
        return self._download(target, self.select(patterns))

    def _list(self) -> list[Entry]:
        repository = self._repository
        files = self._call(
            lambda: self._api.list_repo_files(repository.name, repository.kind, revision=repository.revision),
            cache_folder(),
        )
        entries = []
        for file in files:
            path = None if file.is_dir else repository.below(file.path)
            if path is not None:
                self._paths[path] = file.path
                entries.append(Entry(path, file.size, file.sha256 or file.blob_id or ""))
        return entries

    def _download(self, target: Path, entries: Sequence[Entry]) -> Path:
        repository = self._repository
        name = f"{repository.kind}s--{repository.name.replace('/', '--')}"
        snapshot = target / "modelscope" / name / self.fingerprint()[:32]
        folder = snapshot / repository.path
        if repository.path in self._paths.values():
            folder = folder.parent
        with local(snapshot, "write"):
            snapshot.mkdir(parents=True, exist_ok=True)
            lock = FileLock(snapshot.with_suffix(".lock"))
            lock.acquire()
        try:
            # The client names a file when its digest is right, and would compute all of them again.
            absent = [entry for entry in entries if not _has_size(folder / entry.path, entry.size)]
            if absent:
                listing = [_listed(entry, self._paths[entry.path]) for entry in absent]
                self._call(
                    lambda: self._api.download_repo(
                        repository.name,
                        repository.kind,
                        revision=repository.revision,
                        local_dir=snapshot,
                        file_list=listing,
                    ),
                    target,
                )
        finally:
            lock.release()
        return folder

    def _call(self, call: Callable[[], Result], folder: Path) -> Result:
        """Call the client; `folder` is where it writes."""
        try:
            return repeated(call, lambda error: getattr(error, "retryable", False), self._patience)
        except (errors.HubError, OSError, ValueError) as error:
            raise self._translate(_root(error), folder) from None

    def _translate(self, error: BaseException, folder: Path) -> RunError:
        uri, purpose = self.location.uri, self.purpose
        if isinstance(error, errors.PermissionDeniedError):
            return gated(uri, purpose)
        if isinstance(error, errors.AuthenticationError):
            hint = "check MODELSCOPE_API_TOKEN in the Secret or the environment"
            return RunError(ExitReason.STORAGE_DENIED, f"{self._endpoint} refuses the token for {uri}", hint)
        if isinstance(error, errors.NotExistError):
            return no_repository(f"{uri} at revision `{self._repository.revision}`", purpose)
        if isinstance(error, OSError) and error.errno is not None:
            return local_error(error, folder, "write")
        return hub_unavailable(uri, self._endpoint, error, getattr(error, "status_code", None) or 0)


def _root(error: BaseException) -> BaseException:
    """One failed file stands for the download that it spoiled."""
    while isinstance(error, errors.FileDownloadError) and error.failed_files:
        error = next(iter(error.failed_files.values()))
    return error


def _listed(entry: Entry, path: str) -> dict[str, object]:
    """An entry as the client's listing has it; only digests of 64 digits are SHA-256."""
    row: dict[str, object] = {"Path": path, "Size": entry.size}
    if len(entry.etag) == 64:
        row["Sha256"] = entry.etag
    return row


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
