"""What storage errors mean to a person: denied, unavailable, or not there.

Texts of clients and servers are read for their meaning and then dropped: they can carry
signatures and key ids. What is raised names the place, the cause and the remedy.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from finetune_trainer.config import ExitReason, RunError

Purpose = Literal["model", "data"]
"""What a source is opened for; it decides the reason when it is not there."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_SPOILED_ON_THE_WAY = {"XAmzContentSHA256Mismatch", "BadDigest", "InvalidDigest", "IncompleteBody"}
_FULL = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "a limit is hit",
}
_CONNECTION = {
    "InvalidCertificate": "its certificate is not trusted",
    "dns error": "its name cannot be resolved",
    "ConnectionRefused": "the connection was refused",
    "TimedOut": "it did not answer in time",
    "kind: Timeout": "it did not answer in time",
}


def missing(uri: str, purpose: Purpose, hint: str = "") -> RunError:
    """The model or the data is not where the job says."""
    if purpose == "model":
        return RunError(ExitReason.MODEL_UNAVAILABLE, f"model {uri} does not exist", hint)
    return RunError(ExitReason.INVALID_DATASET, f"data {uri} does not exist", hint)


def damaged(uri: str, why: str) -> RunError:
    """Something published does not match what its manifest says."""
    return RunError(ExitReason.STORAGE_UNAVAILABLE, f"{uri} is damaged: {why}")


@contextlib.contextmanager
def local(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError while `doing` ("write", "read") something at `path` into a RunError."""
    try:
        yield
    except OSError as error:
        raise local_error(error, path, doing) from None


def local_error(error: OSError, path: Path, doing: str) -> RunError:
    """The RunError for an OSError of this machine's file system."""
    if error.errno in _FULL:
        free = _free_bytes(path)
        return RunError(
            ExitReason.STORAGE_UNAVAILABLE,
            f"cannot {doing} {path}: {_FULL[error.errno]} ({free / 2**20:.0f} MiB free)",
            "free some space there, or choose a bigger disk",
        )
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return RunError(
            ExitReason.STORAGE_DENIED,
            f"cannot {doing} {path}: {error.strerror}",
            "check the owner and the mode of the folder",
        )
    return RunError(ExitReason.STORAGE_UNAVAILABLE, f"cannot {doing} {path}: {error.strerror or error}")


def object_error(
    error: Exception, uri: str, *, bucket: str, endpoint: str, purpose: Purpose | None = None
) -> RunError:
    """The RunError for an error of obstore about `uri` in `bucket` at `endpoint`."""
    text = str(error)
    match = _CODE.search(text)
    code = (match[1] or match[2]) if match else ""
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    kind = type(error).__name__
    if code in _NO_BUCKET:
        return RunError(
            ExitReason.STORAGE_DENIED,
            f"bucket `{bucket}` does not exist at {endpoint}",
            "create the bucket, or correct the URI or the endpoint",
        )
    if isinstance(error, FileNotFoundError):
        if purpose is None:
            return RunError(ExitReason.STORAGE_UNAVAILABLE, f"{uri} is not there")
        return missing(uri, purpose)
    detail = f"{code or kind} (HTTP {status})" if status else code or kind
    if (
        status in {401, 403}
        or code == "AccessDenied"
        or kind in {"PermissionDeniedError", "UnauthenticatedError"}
    ):
        return RunError(
            ExitReason.STORAGE_DENIED,
            f"{endpoint} refuses access to {uri}: {detail}",
            "check the credentials and what they may do in this bucket",
        )
    cause = next((words for sign, words in _CONNECTION.items() if sign in text), "")
    if "InvalidCertificate" in text:
        hint = "set AWS_CA_BUNDLE to the PEM file of the authority that signed it"
        return RunError(ExitReason.STORAGE_DENIED, f"{endpoint} cannot be used for {uri}: {cause}", hint)
    if 300 <= status < 500 and status not in {408, 429} and code not in _SPOILED_ON_THE_WAY:
        return RunError(
            ExitReason.STORAGE_DENIED,
            f"{endpoint} rejects requests for {uri}: {detail}",
            "check the endpoint and the region",
        )
    return RunError(
        ExitReason.STORAGE_UNAVAILABLE,
        f"{endpoint} is unavailable for {uri}: {cause or detail}",
        "check the endpoint, or try again later",
    )


def _free_bytes(path: Path) -> int:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free
