"""Addresses of models, data and outputs: which there are, and what is wrong with one that is not."""

from __future__ import annotations

import os.path
import re
from functools import partial
from pathlib import PurePath
from typing import Annotated

from pydantic import Field

from finetune_operator.api import patterns
from finetune_operator.api.base import Checked, fault

SCHEMES = ("hf", "modelscope", "s3", "gs", "az", "pvc")
OUTPUT_SCHEMES = ("s3", "gs", "az", "pvc")
"""A hub can neither publish atomically nor keep checkpoints."""
FILE = "file"
"""For runs on one machine: a pod would look at its own disk."""

_CONTAINER = {
    "hf": "repository",
    "modelscope": "repository",
    "s3": "bucket",
    "gs": "bucket",
    "az": "container",
    "pvc": "claim",
}
_OTHER_NAMES = {
    "huggingface": "hf",
    "ms": "modelscope",
    "s3a": "s3",
    "s3n": "s3",
    "minio": "s3",
    "oss": "s3",
    "gcs": "gs",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
}
_DOTS = re.compile(r"(\.|%2e){1,2}", re.IGNORECASE)
_CLAIM = re.compile(patterns.DNS_SUBDOMAIN)
_HUB_PAGE = re.compile(r"https?://(?:www\.)?(huggingface\.co|hf\.co|modelscope\.cn)/(?:models/)?([^?#@]+)")


def is_file(uri: object) -> bool:
    """Whether `uri` means a path on this machine."""
    return isinstance(uri, str) and uri.startswith(f"{FILE}:")


def check(uri: str, local: bool, *, schemes: tuple[str, ...], example: str) -> None:
    """Refuse an address that names nothing we can read or write.

    Args:
        uri: the address as written; never shown when it may hold a key.
        local: whether `file://` is allowed too.
        schemes: the other schemes allowed here.
        example: prefix that turns a bare `name/name` into an address, for the suggestion.

    Raises:
        PydanticCustomError: in words for a person.
    """
    listed = ", ".join((*schemes, FILE) if local else schemes)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise fault("has no scheme", _spell_out(uri, local, example) or f"use one of {listed}")
    if any(character < " " or character == "\x7f" for character in uri) or uri != uri.strip():
        raise fault("holds a space at an end, or a control character")
    authority = rest.split("/", 1)[0]
    if "@" in authority:
        raise fault("holds a user name or credentials", "keys go into a Secret that credentialsSecret names")
    if scheme == FILE and local:
        _check_file(rest)
    elif scheme not in schemes:
        raise _unknown_scheme(uri, scheme, schemes, listed)
    elif not authority:
        raise fault(f"names no {_CONTAINER[scheme]}", f"write {scheme}://{_CONTAINER[scheme]}/path")
    if "?" in rest or "#" in rest:
        raise fault("has a query or a fragment", "write the plain address; signed links are not supported")
    if scheme != FILE and any(_DOTS.fullmatch(segment) for segment in rest.split("/")):
        raise fault("has a path segment '.' or '..'", "write the path out")
    if scheme == "pvc" and not _CLAIM.search(authority):
        raise fault(f"the claim's name {patterns.EXPLANATIONS[patterns.DNS_SUBDOMAIN]}")


def _unknown_scheme(uri: str, scheme: str, schemes: tuple[str, ...], listed: str) -> Exception:
    if scheme == FILE:
        return fault(
            f"{FILE}:// is for a run without a cluster, a pod would look at its own disk",
            f"use one of {listed}; for `finetune run`, check with `finetune validate --local`",
        )
    if page := _HUB_PAGE.match(uri):
        hub = "modelscope" if page[1] == "modelscope.cn" else "hf"
        if hub in schemes:
            return fault(f"{scheme}:// is not supported", f"write {hub}://{page[2].rstrip('/')}")
    meant = _OTHER_NAMES.get(scheme.lower(), scheme.lower())
    if scheme in SCHEMES:
        return fault(f"{scheme}:// cannot be written to by a run", f"use one of {listed}")
    hint = f"did you mean {meant}://? There are {listed}" if meant in schemes else f"use one of {listed}"
    return fault(f"{scheme}:// is not supported" if scheme else "has no scheme", hint)


def _spell_out(text: str, local: bool, example: str) -> str:
    """What was probably meant by an address without a scheme."""
    if local and text.startswith(f"{FILE}:"):
        return f"write {_file_uri(text.removeprefix(f'{FILE}:'))}"
    if local and text.startswith(("/", "./", "../", "~/")):
        return f"write {_file_uri(text)}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return f"write {example}{text}"
    return ""


def _file_uri(path: str) -> str:
    return f"{FILE}://{path}" if path.startswith(("/", "./", "../", "~/")) else f"{FILE}://./{path}"


def _check_file(path: str) -> None:
    if not path:
        raise fault("names no file or folder")
    if not (path.startswith(("/", "./", "../", "~/")) or path in (".", "..", "~")):
        raise fault(
            f"{FILE}://{path} has no path to start from",
            f"write {FILE}://./{path} from the current folder, {FILE}:///{path} from the root",
        )


def absolute(uri: str, *, folder: PurePath, home: PurePath) -> str:
    """Make a `file://` address independent of where it is read; others are returned unchanged.

    What follows `file://` is a path as a shell shows it, not percent-encoded: `/x`, `./x`, `../x` or `~/x`.

    Args:
        uri: an address that `check` accepts.
        folder: absolute path of the folder that `./` starts from.
        home: absolute path that `~` stands for.
    """
    if not is_file(uri):
        return uri
    path = uri.removeprefix(f"{FILE}://")
    if path.startswith("~"):
        path = f"{home}{path[1:]}"
    return f"{FILE}://{os.path.normpath(folder / path)}"


ModelUri = Annotated[
    str,
    Field(min_length=1, max_length=1024),
    Checked(partial(check, schemes=SCHEMES, example="hf://")),
]
SourceUri = Annotated[
    str,
    Field(min_length=1, max_length=1024),
    Checked(partial(check, schemes=SCHEMES, example="hf://datasets/")),
]
OutputUri = Annotated[
    str,
    Field(min_length=1, max_length=1024),
    Checked(partial(check, schemes=OUTPUT_SCHEMES, example="s3://")),
]
