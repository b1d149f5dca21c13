"""What the model hubs have in common: repositories in URIs, repeated calls, errors for people."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.failures import Purpose, missing
from finetune_trainer.storage.uri import Location

Result = TypeVar("Result")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0  # seconds
_CAUSES = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted",
    "Connection refused": "the connection was refused",
    "Name or service not known": "its name cannot be resolved",
    "name resolution": "its name cannot be resolved",
    "timed out": "it did not answer in time",
}


@dataclass(frozen=True)
class Repository:
    """A repository of a hub and, below it, the folder or file that is meant (empty: all of it)."""

    kind: str
    """`model` or `dataset`."""
    name: str
    path: str
    revision: str

    @classmethod
    def parse(cls, location: Location, revision: str) -> Repository:
        """Read `[datasets/]org/name[@revision][/path]`; a revision in the URI goes before the argument."""
        parts = location.path.split("/")
        kind = "model"
        if len(parts) > 1 and parts[0] == "datasets":
            kind, parts = "dataset", parts[1:]
        name, _, own = "/".join(parts[:2]).partition("@")
        return cls(kind, name, "/".join(parts[2:]), own or revision)

    def below(self, path: str) -> str | None:
        """`path` of the repository as seen from this folder or file; None if it lies outside."""
        if not self.path:
            return path
        if path == self.path:
            return path.rpartition("/")[2]
        return path.removeprefix(f"{self.path}/") if path.startswith(f"{self.path}/") else None

    def allow(self, patterns: Sequence[str] | None) -> list[str] | None:
        """Shell-style patterns over the whole repository for patterns below this folder or file."""
        if not self.path:
            return None if patterns is None else list(patterns)
        return [self.path, *(f"{self.path}/{pattern}" for pattern in patterns or ["*"])]


def cache_folder() -> Path:
    """Where downloads of this user lie: `$FINETUNE_CACHE`, or `~/.cache/finetune-operator`."""
    return Path(os.environ.get("FINETUNE_CACHE") or Path.home() / ".cache" / "finetune-operator")


def repeated(call: Callable[[], Result], transient: Callable[[Exception], bool], patience: float) -> Result:
    """Call until it succeeds, fails for good, or `patience` seconds are over; pauses double up to 10 s."""
    deadline = time.monotonic() + patience
    pause = _FIRST_PAUSE
    while True:
        try:
            return call()
        except Exception as error:  # what counts as transient is the caller's knowledge
            if not transient(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def no_repository(uri: str, purpose: Purpose) -> RunError:
    """The repository is not there, or is private: hubs do not tell the two apart."""
    hint = "check the name; a private repository needs credentialsSecret with a token that may read it"
    return missing(uri, purpose, hint)


def no_revision(uri: str, revision: str, purpose: Purpose) -> RunError:
    """The repository has no such branch, tag or commit."""
    return missing(f"{uri} at revision `{revision}`", purpose, "name a branch, tag or commit that exists")


def gated(uri: str, purpose: Purpose) -> RunError:
    """The repository is there, but this account may not download it."""
    return RunError(
        ExitReason.MODEL_UNAVAILABLE if purpose == "model" else ExitReason.STORAGE_DENIED,
        f"access to {uri} is not granted",
        "accept its licence on the hub's page, and name a Secret with its token in credentialsSecret",
    )


def hub_unavailable(uri: str, endpoint: str, error: BaseException, status: int = 0) -> RunError:
    """The hub did not answer, or not usefully, for as long as the caller was patient."""
    text = str(error)
    cause = next((words for sign, words in _CAUSES.items() if sign in text), type(error).__name__)
    message = f"the hub at {endpoint} is unavailable for {uri}: {f'HTTP {status}' if status else cause}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        hint = "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to the PEM file of the authority that signed it"
        return RunError(ExitReason.STORAGE_DENIED, message, hint)
    hint = "check the network and the endpoint, or try again later"
    return RunError(ExitReason.STORAGE_UNAVAILABLE, message, hint)
