"""Where data lives, as people write it: `s3://bucket/key`, `hf://org/name`, `pvc://claim/path` ..."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from finetune_trainer.config import ExitReason, RunError

ObjectScheme = Literal["s3", "gs", "az"]
HubScheme = Literal["hf", "modelscope"]
FolderScheme = Literal["file", "pvc"]
Scheme = ObjectScheme | HubScheme | FolderScheme

OBJECT_SCHEMES: tuple[str, ...] = get_args(ObjectScheme)
HUB_SCHEMES: tuple[str, ...] = get_args(HubScheme)
_SCHEMES: tuple[str, ...] = (*OBJECT_SCHEMES, *HUB_SCHEMES, *get_args(FolderScheme))

_SHAPES = {
    "s3": "s3://bucket/key",
    "gs": "gs://bucket/key",
    "az": "az://container/key",
    "hf": "hf://org/name or hf://datasets/org/name",
    "modelscope": "modelscope://org/name or modelscope://datasets/org/name",
    "pvc": "pvc://claim/path",
    "file": "file:///absolute/path, file://./relative/path or file://~/path",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


@dataclass(frozen=True)
class Location:
    """A parsed URI.

    `host` is the bucket, container or claim, and empty for files and hubs; `path` has no
    leading or trailing slash, except that a file's path is as the operating system takes it.
    """

    uri: str
    scheme: str
    host: str
    path: str

    @classmethod
    def parse(cls, uri: str) -> Location:
        """Read a URI.

        Raises:
            RunError: InvalidConfiguration, with the shape that was expected.
        """
        scheme, separator, rest = uri.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise _invalid(uri, "its scheme is unknown", f"write one of {', '.join(_SHAPES.values())}")
        shape = f"write {_SHAPES[scheme]}"
        if any(character < " " or character == "\x7f" for character in rest):
            raise _invalid(uri, "it holds control characters", shape)
        if scheme == "file":
            if not rest.startswith(("/", "./", "../", "~/")) and rest not in {".", "..", "~"}:
                raise _invalid(uri, "its path is neither absolute nor marked as relative", shape)
            return cls(uri, scheme, "", rest)
        rest = rest.rstrip("/")
        if not rest or any(part in {"", ".", ".."} for part in rest.split("/")):
            raise _invalid(uri, "it has an empty, `.` or `..` part", shape)
        if scheme in HUB_SCHEMES:
            return cls(uri, scheme, "", rest)
        host, _, path = rest.partition("/")
        if not _NAME.fullmatch(host):
            raise _invalid(uri, f"`{host}` is not a name", shape)
        return cls(uri, scheme, host, path)

    @property
    def folder(self) -> Path:
        """The path in this machine's file system (file and pvc only), absolute."""
        if self.scheme == "pvc":
            return self.claim / self.path
        # abspath, not resolve: a link at the top is the user's own choice and stays in messages.
        return Path(os.path.abspath(Path(self.path).expanduser()))  # noqa: PTH100

    @property
    def claim(self) -> Path:
        """Where the claim of a pvc URI is mounted: `$FINETUNE_CLAIMS/<claim>`."""
        return Path(os.path.abspath(os.environ.get("FINETUNE_CLAIMS", "/mnt/claims"))) / self.host  # noqa: PTH100


def join(*parts: str) -> str:
    """Join key parts with single slashes, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def safe_path(path: str) -> str:
    """Return `path` if it is a plain relative path that stays below its root.

    Raises:
        ValueError: it is absolute, has empty, `.` or `..` parts, or control characters.
    """
    if any(character < " " for character in path):
        raise ValueError(f"unsafe path {path!r}")
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError(f"unsafe path {path!r}")
    return path


def matches(path: str, patterns: Sequence[str] | None) -> bool:
    """Whether a path matches any of the shell-style patterns, in which `*` crosses slashes (None: always)."""
    return patterns is None or any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _invalid(uri: str, why: str, hint: str) -> RunError:
    return RunError(ExitReason.INVALID_CONFIGURATION, f"`{uri}` cannot be used as a URI: {why}", hint)
