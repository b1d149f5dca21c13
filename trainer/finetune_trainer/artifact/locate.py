"""From what a person names (a folder, any folder above it, a URI) to one published adapter, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finetune_trainer.artifact.metadata import Metadata
from finetune_trainer.artifact.verify import CONFIG
from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.config.layout import MANIFEST
from finetune_trainer.storage import Manifest, cache_folder, open_output, open_source
from finetune_trainer.storage.uri import OBJECT_SCHEMES, Location

_HINT = "name the folder that `finetune run` gave at its end, or one above it"


@dataclass(frozen=True)
class Published:
    """A published adapter on this machine; every file is as its manifest says."""

    uri: str
    folder: Path
    metadata: Metadata
    others: int
    """Published adapters, older than this one, below the same place."""


def locate(place: str) -> Published:
    """Find the newest published adapter at or below a folder or URI, and check its files.

    Args:
        place: a path, or a `file://`, `pvc://`, `s3://`, `gs://` or `az://` URI.

    Raises:
        RunError: InvalidConfiguration, there is none; StorageUnavailable, a file is damaged.
    """
    root = place if "://" in place else f"file://{Path(place).expanduser().absolute()}"
    location = Location.parse(root)
    prefixes = _in_bucket(location) if location.scheme in OBJECT_SCHEMES else _in_folder(location.folder)
    if "" in prefixes:
        # The place is itself an adapter: storage names it from the folder above.
        root, _, name = root.rstrip("/").rpartition("/")
        prefixes = [name]
    output = open_output(root)
    manifests = {prefix: manifest for prefix in prefixes if (manifest := output.manifest(prefix))}
    found = {prefix: Metadata.of(manifest, output.uri(prefix)) for prefix, manifest in manifests.items()}
    adapters = {prefix: metadata for prefix, metadata in found.items() if metadata.kind == "adapter"}
    if not adapters:
        raise _nothing(place)
    newest = max(adapters, key=lambda prefix: (adapters[prefix].published_at, adapters[prefix].job.attempt))
    folder = output.fetch(newest, _download_folder(manifests[newest]))
    return Published(output.uri(newest), folder, adapters[newest], len(adapters) - 1)


def _in_folder(root: Path) -> list[str]:
    """Folders at or below `root` that look like published adapters, as paths below it."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise RunError(ExitReason.INVALID_CONFIGURATION, f"{root} {what}, not a folder", _HINT)
    below = (path.parent.relative_to(root) for path in root.rglob(MANIFEST))
    # A hidden folder is one that a publication was still being written to.
    return [
        "" if path == Path() else path.as_posix()
        for path in below
        if not any(part.startswith(".") for part in path.parts) and (root / path / CONFIG).is_file()
    ]


def _in_bucket(location: Location) -> list[str]:
    try:
        paths = {entry.path for entry in open_source(location.uri, purpose="data").entries()}
    except RunError as error:
        if error.reason is not ExitReason.INVALID_DATASET:
            raise
        raise _nothing(location.uri) from None
    folders = (path.removesuffix(MANIFEST) for path in paths if path.rpartition("/")[2] == MANIFEST)
    return [folder.rstrip("/") for folder in folders if folder + CONFIG in paths]


def _nothing(place: str) -> RunError:
    return RunError(ExitReason.INVALID_CONFIGURATION, f"{place} holds no published adapter", _HINT)


def _download_folder(manifest: Manifest) -> Path:
    """Where a bucket's adapter is kept; what lies there already is checked and not fetched again."""
    return cache_folder() / "adapters" / manifest.sha256
