"""Keys for storage and hubs, from mounted Secrets first and the environment second."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from finetune_trainer.config import ExitReason, RunError

_CERTIFICATES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
_AWS_IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

KEYS: dict[str, tuple[str, ...]] = {
    "s3": (
        *_AWS_IDENTITY,
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
        "AWS_SKIP_SIGNATURE",
        "AWS_REQUEST_CHECKSUM_CALCULATION",
        *_CERTIFICATES,
    ),
    "gs": (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        *_CERTIFICATES,
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        *_CERTIFICATES,
    ),
    "hf": ("HF_TOKEN", "HF_ENDPOINT"),
    "modelscope": ("MODELSCOPE_API_TOKEN", "MODELSCOPE_ENDPOINT"),
    "file": (),
    "pvc": (),
}
"""What is looked up for each scheme. Hubs take a private authority from `SSL_CERT_FILE` (Hugging Face)
and `REQUESTS_CA_BUNDLE` (ModelScope) in the environment, where their clients look for it."""

_PATHS = {*_CERTIFICATES, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"}


class Credentials(Mapping[str, str]):
    """A mapping that never shows its values."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(sorted(self._values))})"


def credentials(name: str | None, scheme: str) -> Credentials:
    """Look up the keys of `scheme`: files `$FINETUNE_SECRETS/<name>/<KEY>`, then the environment.

    Keys whose value is a path (certificates, a service account) may hold the content itself in a
    mounted file; the value returned is then that file's path.

    Raises:
        RunError: StorageDenied where `name` is given and neither the folder nor any of the keys
            in the environment exists; InvalidConfiguration where `name` is no plain name.
    """
    keys = KEYS[scheme]
    values = {key: os.environ[key] for key in keys if os.environ.get(key)}
    if name is None or not keys:
        return Credentials(values)
    if "/" in name or name in {"", ".", ".."}:
        raise RunError(ExitReason.INVALID_CONFIGURATION, f"`{name}` is not the name of a Secret")
    folder = Path(os.environ.get("FINETUNE_SECRETS", "/etc/finetune/secrets")) / name
    mounted = _read(folder, keys)
    if not mounted and not values.keys() - set(_CERTIFICATES):
        raise RunError(
            ExitReason.STORAGE_DENIED,
            f"credentials `{name}`: {folder} holds none of the keys of {scheme}://, nor does the environment",
            f"mount the Secret there, or set {keys[0]}",
        )
    if "AWS_ACCESS_KEY_ID" in mounted:
        # The three belong together: a session token of another identity would spoil the key.
        values = {key: value for key, value in values.items() if key not in _AWS_IDENTITY}
    return Credentials(values | mounted)


def _read(folder: Path, keys: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in keys:
        file = folder / key
        try:
            value = file.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(
                ExitReason.STORAGE_DENIED, f"{file} cannot be read: {type(error).__name__}"
            ) from None
        if value:
            inline = key in _PATHS and value.startswith(("-----BEGIN", "{"))
            found[key] = str(file) if inline else value
    return found
