from __future__ import annotations

from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.uri import Location, join, matches, safe_path


@pytest.mark.parametrize(
    ("uri", "scheme", "host", "path"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("s3://bucket/a/b c.jsonl", "s3", "bucket", "a/b c.jsonl"),
        ("gs://b/训练/数据.jsonl", "gs", "b", "训练/数据.jsonl"),
        ("az://container/k", "az", "container", "k"),
        ("pvc://claim", "pvc", "claim", ""),
        ("hf://gpt2", "hf", "", "gpt2"),
        ("hf://datasets/org/name/train", "hf", "", "datasets/org/name/train"),
        ("modelscope://org/name", "modelscope", "", "org/name"),
        ("file:///a/../b", "file", "", "/a/../b"),
        ("file://./x", "file", "", "./x"),
    ],
)
def test_reads_uris(uri: str, scheme: str, host: str, path: str) -> None:
    location = Location.parse(uri)
    assert (location.scheme, location.host, location.path, location.uri) == (scheme, host, path, uri)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "plain/path",
        "ftp://host/x",
        "S3://bucket/x",
        "s3:/bucket",
        "s3://",
        "s3:///key",
        "s3://bucket//key",
        "s3://bucket/../key",
        "s3://bucket/./key",
        "s3://buc ket/key",
        "s3://bucket/new\nline",
        "pvc://claim/../other",
        "pvc://../x",
        "hf://org/../name",
        "file://relative/x",
        "file://",
    ],
)
def test_refuses_what_is_no_uri(uri: str) -> None:
    with pytest.raises(RunError) as caught:
        Location.parse(uri)
    assert caught.value.reason is ExitReason.INVALID_CONFIGURATION
    assert caught.value.hint.startswith("write ")


def test_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/lin")
    monkeypatch.setenv("FINETUNE_CLAIMS", "/claims")
    assert Location.parse("file:///a/b").folder == Path("/a/b")
    assert Location.parse("file://./b").folder == tmp_path / "b"
    assert Location.parse("file://../b").folder == tmp_path.parent / "b"
    assert Location.parse("file://~/b").folder == Path("/home/lin/b")
    assert Location.parse("pvc://team/models/x").folder == Path("/claims/team/models/x")


@pytest.mark.parametrize("path", ["a", "a/b.txt", "中文/…", "..a/b..", "a\\b"])
def test_safe_paths(path: str) -> None:
    assert safe_path(path) == path


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\0b", "a\nb"])
def test_unsafe_paths(path: str) -> None:
    with pytest.raises(ValueError, match="unsafe"):
        safe_path(path)


def test_patterns_cross_slashes_and_mind_case() -> None:
    assert matches("a/b.json", ["*.json"])
    assert not matches("a/b.JSON", ["*.json"])
    assert matches("anything", None)
    assert not matches("anything", [])
    assert join("", "a", "", "b") == "a/b"
