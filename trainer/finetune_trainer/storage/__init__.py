"""Data, models and results by URI, behind two small interfaces: `Source` to read, `Output` to publish.

    file:///abs  file://./relative  pvc://claim/path  s3://bucket/key  gs://bucket/key  az://container/key
    hf://org/name  hf://datasets/org/name  modelscope://org/name  (read only)

Clients of object stores and hubs are imported when a URI asks for them, and not before.
"""

from __future__ import annotations

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.credentials import credentials as look_up
from finetune_trainer.storage.failures import Purpose
from finetune_trainer.storage.folders import FolderOutput, FolderSource
from finetune_trainer.storage.hubs import cache_folder
from finetune_trainer.storage.manifest import FileEntry, Manifest
from finetune_trainer.storage.output import Output
from finetune_trainer.storage.source import Entry, Source
from finetune_trainer.storage.uri import HUB_SCHEMES, OBJECT_SCHEMES, Location

__all__ = [
    "Entry",
    "FileEntry",
    "Manifest",
    "Output",
    "Purpose",
    "Source",
    "cache_folder",
    "open_output",
    "open_source",
]

PATIENCE = 60.0
"""Seconds for which requests to an unavailable server are repeated, where the caller does not say."""


def open_source(
    uri: str,
    *,
    purpose: Purpose,
    credentials: str | None = None,
    revision: str = "main",
    patience: float = PATIENCE,
) -> Source:
    """Open something to read; nothing is contacted yet.

    Args:
        uri: where it is.
        purpose: whether a model or data is read; it decides the reason when that is not there.
        credentials: name of the credentials folder, or None for the environment.
        revision: branch, tag or commit of a hub repository.
        patience: seconds for which requests to an unavailable server are repeated.

    Raises:
        RunError: InvalidConfiguration for a URI that is none; StorageDenied for missing credentials.
    """
    location = Location.parse(uri)
    keys = look_up(credentials, location.scheme)
    if location.scheme in OBJECT_SCHEMES:
        from finetune_trainer.storage.objects import ObjectSource

        return ObjectSource(location, keys, purpose, patience)
    if location.scheme == "hf":
        from finetune_trainer.storage.huggingface import HuggingFaceSource

        return HuggingFaceSource(location, keys, revision, purpose, patience)
    if location.scheme == "modelscope":
        from finetune_trainer.storage.modelscope import ModelScopeSource

        return ModelScopeSource(location, keys, revision, purpose, patience)
    return FolderSource(location, purpose)


def open_output(uri: str, *, credentials: str | None = None, patience: float = PATIENCE) -> Output:
    """Open a place to publish under; nothing is contacted yet.

    Args:
        uri: a folder, a claim or a bucket with an optional prefix.
        credentials: name of the credentials folder, or None for the environment.
        patience: seconds for which requests to an unavailable server are repeated.

    Raises:
        RunError: InvalidConfiguration for a URI that cannot be written to; StorageDenied for
            missing credentials.
    """
    location = Location.parse(uri)
    if location.scheme in HUB_SCHEMES:
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"`{uri}` cannot be an output: hubs are read only",
            "write to s3://, gs://, az://, pvc:// or file://",
        )
    keys = look_up(credentials, location.scheme)
    if location.scheme in OBJECT_SCHEMES:
        from finetune_trainer.storage.objects import ObjectOutput

        return ObjectOutput(location, keys, patience)
    return FolderOutput(location)
