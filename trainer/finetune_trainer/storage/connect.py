"""Stores of obstore, set up from a location and its credentials."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.credentials import Credentials
from finetune_trainer.storage.failures import local
from finetune_trainer.storage.uri import Location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

_REQUEST_SECONDS = 120
_CONNECT_SECONDS = 10
_AMBIENT_IDENTITY = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
AWS = "AWS S3"
_CERTIFICATES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")


def endpoint_of(location: Location, keys: Credentials) -> str:
    """The server's address or name, for messages."""
    if location.scheme == "s3":
        return keys.get("AWS_ENDPOINT_URL_S3") or keys.get("AWS_ENDPOINT_URL") or AWS
    if location.scheme == "az":
        return keys.get("AZURE_STORAGE_ENDPOINT") or "Azure Blob Storage"
    return "Google Cloud Storage"


def connect(
    location: Location, keys: Credentials, endpoint: str, patience: float
) -> S3Store | GCSStore | AzureStore:
    """Set up a store; nothing is contacted yet.

    Args:
        location: an s3, gs or az URI; only its host counts here.
        keys: credentials, certificates and settings.
        endpoint: what `endpoint_of` says.
        patience: seconds for which failed requests are repeated.

    Raises:
        RunError: StorageDenied, credentials are missing or unusable, or the endpoint is no address.
    """
    _check_endpoint(location, keys)
    client: ClientConfig = {
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "allow_http": endpoint.startswith("http://"),
    }
    if authority := keys.get("AWS_CA_BUNDLE") or keys.get("SSL_CERT_FILE"):
        with local(Path(authority), "read"):
            client["root_certificate"] = Path(authority).read_bytes()
    # The time is the bound; the count only has to be high enough not to end it early.
    retry: RetryConfig = {
        "max_retries": 100,
        "retry_timeout": timedelta(seconds=patience),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    config: Any = {key.lower(): value for key, value in keys.items() if key not in _CERTIFICATES}
    try:
        if location.scheme == "s3":
            return _s3(location, keys, config, client, retry)
        if location.scheme == "gs":
            return GCSStore(location.host, config=config, client_options=client, retry_config=retry)
        return AzureStore(location.host, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError) as error:
        raise RunError(
            ExitReason.STORAGE_DENIED,
            f"{location.uri} cannot be opened with these credentials: {type(error).__name__}",
            f"check the values of {', '.join(sorted(keys)) or 'the credentials'}",
        ) from None


def _check_endpoint(location: Location, keys: Credentials) -> None:
    # Requests to something that is no URL do not fail in the client: they take the process down.
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT")
    for name, address in ((name, keys[name]) for name in names if name in keys):
        try:
            parts = urlsplit(address)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or any(character.isspace() for character in address):
            raise RunError(
                ExitReason.STORAGE_DENIED,
                f"{name} for {location.uri} is no address of a server: {address!r}",
                "write it with its scheme, like http://minio:9000 or https://s3.example.com",
            )


def _s3(
    location: Location, keys: Credentials, config: Any, client: ClientConfig, retry: RetryConfig
) -> S3Store:
    # Objects are deleted one by one: the bulk call is missing from many compatible servers.
    config["aws_disable_bulk_delete"] = True
    if _sends_checksums(endpoint_of(location, keys), config.pop("aws_request_checksum_calculation", "")):
        config["aws_checksum_algorithm"] = "SHA256"
    if {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= keys.keys():
        # A provider in place of settings: these would be completed from the environment,
        # where a session token of another identity may lie.
        identity: S3Credential = {
            "access_key_id": keys["AWS_ACCESS_KEY_ID"],
            "secret_access_key": keys["AWS_SECRET_ACCESS_KEY"],
            "token": keys.get("AWS_SESSION_TOKEN"),
            "expires_at": None,
        }
        for key in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"):
            config.pop(key, None)
        return S3Store(
            location.host,
            config=config,
            client_options=client,
            retry_config=retry,
            credential_provider=lambda: identity,
        )
    ambient = any(os.environ.get(name) for name in _AMBIENT_IDENTITY)
    if endpoint_of(location, keys) != AWS and not ambient and "AWS_SKIP_SIGNATURE" not in keys:
        raise RunError(
            ExitReason.STORAGE_DENIED,
            f"no credentials for {location.uri}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a Secret that holds them",
        )
    return S3Store(location.host, config=config, client_options=client, retry_config=retry)


def _sends_checksums(endpoint: str, wish: str) -> bool:
    """Whether uploads carry a SHA-256 for the server to check.

    Many compatible servers stumble over checksums, and over TLS nothing changes on the way:
    they are sent to AWS, and where there is no TLS. `AWS_REQUEST_CHECKSUM_CALCULATION`, which
    all clients of AWS read, decides otherwise.
    """
    if wish:
        return wish.lower() == "when_supported"
    return endpoint == AWS or endpoint.startswith("http://")
