"""`hf://`: repositories of the Hugging Face Hub, or of a mirror at `HF_ENDPOINT`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import httpx2
from huggingface_hub import HfApi, RepoFile, constants, errors
from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.credentials import Credentials
from finetune_trainer.storage.failures import Purpose, local_error
from finetune_trainer.storage.hubs import (
    Repository,
    cache_folder,
    gated,
    hub_unavailable,
    no_repository,
    no_revision,
    repeated,
)
from finetune_trainer.storage.source import Entry, Source
from finetune_trainer.storage.uri import Location

Result = TypeVar("Result")


class HuggingFaceSource(Source):
    """A model or data set repository, read through the hub's own client and its cache."""

    def __init__(
        self, location: Location, keys: Credentials, revision: str, purpose: Purpose, patience: float
    ) -> None:
        super().__init__(location, purpose)
        self._repository = Repository.parse(location, revision)
        self._endpoint = keys.get("HF_ENDPOINT") or constants.ENDPOINT
        # Without a token the client takes the one of `hf auth login`, as people expect on their own machine.
        self._api = HfApi(endpoint=self._endpoint, token=keys.get("HF_TOKEN"))
        self._patience = patience
        if not sys.stderr.isatty():
            disable_progress_bars()
        self._commit: str | None = None
        self._paths: dict[str, str] = {}

    def open(self, path: str) -> BinaryIO:
        """Download into the hub's cache, resumed and checked by its client, and open the file there."""
        entry = self.find(path)
        file = self._call(
            lambda: self._api.hf_hub_download(
                self._repository.name,
                self._paths[entry.path],
                repo_type=self._repository.kind,
                revision=self._commit,
                cache_dir=cache_folder() / "huggingface",
            ),
            cache_folder(),
        )
        return Path(file).open("rb")

    def fetch(self, target: Path, patterns: Sequence[str] | None = None) -> Path:
        """The snapshot folder in the hub's cache below `target`.

        Where the hub is down or `HF_HUB_OFFLINE` is set, a snapshot that is known to be complete serves.
        """
        repository = self._repository
        snapshot = self._call(
            lambda: self._api.snapshot_download(
                repository.name,
                repo_type=repository.kind,
                revision=repository.revision,
                cache_dir=target / "huggingface",
                allow_patterns=repository.allow(patterns),
            ),
            target,
        )
        wanted = Path(snapshot) / repository.path
        folder = wanted.parent if wanted.is_file() else wanted
        if not any(file.is_file() for file in folder.rglob("*")):
            raise self._absent(f"holds no file that matches {', '.join(patterns or ['*'])}")
        return folder

    def _list(self) -> list[Entry]:
        repository = self._repository
        info = self._call(
            lambda: self._api.repo_info(
                repository.name, repo_type=repository.kind, revision=repository.revision
            ),
            cache_folder(),
        )
        self._commit = info.sha
        files = self._call(
            lambda: [
                item
                for item in self._api.list_repo_tree(
                    repository.name, recursive=True, revision=info.sha, repo_type=repository.kind
                )
                if isinstance(item, RepoFile)
            ],
            cache_folder(),
        )
        entries = []
        for file in files:
            path = repository.below(file.path)
            if path is not None:
                self._paths[path] = file.path
                entries.append(Entry(path, file.size, file.lfs.sha256 if file.lfs else file.blob_id))
        return entries

    def _call(self, call: Callable[[], Result], folder: Path) -> Result:
        """Call the client; `folder` is where it writes."""
        try:
            return repeated(call, _is_transient, self._patience)
        except (OSError, httpx2.HTTPError, errors.EntryNotFoundError, ValueError) as error:
            raise self._translate(_root(error), folder) from None

    def _translate(self, error: BaseException, folder: Path) -> RunError:
        uri, purpose = self.location.uri, self.purpose
        status = _status(error)
        if isinstance(error, errors.GatedRepoError) or status == 403:
            return gated(uri, purpose)
        if isinstance(error, errors.RevisionNotFoundError):
            return no_revision(uri, self._repository.revision, purpose)
        if status == 401 and not isinstance(error, errors.RepositoryNotFoundError):
            hint = "check HF_TOKEN in the Secret or the environment"
            return RunError(ExitReason.STORAGE_DENIED, f"{self._endpoint} refuses the token for {uri}", hint)
        if status == 404 or isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
            return no_repository(uri, purpose)
        if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
            hint = "the local cache does not hold all of it: fetch it once with the hub in reach"
            return RunError(
                ExitReason.STORAGE_UNAVAILABLE, f"{uri}: the hub is offline or out of reach", hint
            )
        if isinstance(error, OSError) and error.errno is not None:
            return local_error(error, folder, "write")
        return hub_unavailable(uri, self._endpoint, error, status)


def _root(error: BaseException) -> BaseException:
    """The client wraps what went wrong in "not in the local cache": the first cause says more."""
    while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int:
    return error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0


def _is_transient(error: BaseException) -> bool:
    error = _root(error)
    status = _status(error)
    if status:
        return status >= 500 or status in {408, 429}
    return isinstance(error, httpx2.TransportError)
