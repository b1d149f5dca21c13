from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.manifest import FileEntry, Manifest, check, describe

ENTRY = FileEntry(size=2, sha256=hashlib.sha256(b"hi").hexdigest())


def test_it_reads_what_it_wrote() -> None:
    manifest = Manifest.of({"a/b": ENTRY}, {"step": 7, "基": "x"})
    again = Manifest.decode(manifest.encode(), "here")
    assert again == manifest
    assert again.metadata == {"step": 7, "基": "x"}
    assert again.sha256 == manifest.sha256 == hashlib.sha256(manifest.encode()).hexdigest()
    assert json.loads(manifest.encode())["files"]["a/b"]["size"] == 2
    assert manifest.size == 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version": 2, "files": {}}',
        b'{"version": 1}',
        json.dumps({"version": 1, "files": {"../x": ENTRY.model_dump()}}).encode(),
        json.dumps({"version": 1, "files": {"/etc/x": ENTRY.model_dump()}}).encode(),
        json.dumps({"version": 1, "files": {"x": {"size": -1, "sha256": ENTRY.sha256}}}).encode(),
        json.dumps({"version": 1, "files": {"x": {"size": 1, "sha256": "00"}}}).encode(),
    ],
)
def test_a_hostile_or_broken_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(RunError, match=r"^s3://b/manifest\.json is damaged") as caught:
        Manifest.decode(text, "s3://b/manifest.json")
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE


def test_selects_by_pattern() -> None:
    manifest = Manifest.of({"a/x.npy": ENTRY, "b/y.json": ENTRY})
    assert list(manifest.select(["a/*"])) == ["a/x.npy"]
    assert list(manifest.select(None)) == ["a/x.npy", "b/y.json"]


def test_checks_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"hi")
    assert describe(path) == ENTRY
    check(path, ENTRY, "u")
    for content, why in [(b"ho", "sha256"), (b"h", "1 bytes in place of 2")]:
        path.write_bytes(content)
        with pytest.raises(RunError, match=why):
            check(path, ENTRY, "u")
    path.unlink()
    with pytest.raises(RunError, match="u is damaged: the file is missing"):
        check(path, ENTRY, "u")
    path.symlink_to(tmp_path)
    with pytest.raises(RunError, match="the file is missing"):
        check(path, ENTRY, "u")
