from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finetune_trainer.artifact.locate import locate
from finetune_trainer.artifact.metadata import BaseFacts, DataFacts, JobFacts, Metadata
from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import open_output
from tests.fixtures.seaweedfs import seaweedfs


def metadata(**changes: object) -> dict[str, object]:
    made = Metadata(
        kind="adapter",
        job=JobFacts(name="harbour", namespace="default", uid="u", attempt=1),
        base_model=BaseFacts(uri="file:///models/tiny", name="/models/tiny"),
        precision="BF16",
        dataset=DataFacts(sha256="ab", rows=5, template="Model"),
        published_at="2026-01-01T00:00:00+00:00",
    )
    return made.model_copy(update=changes).model_dump(mode="json")


Publish = Callable[..., Path]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Publishes a small folder that looks like an adapter; returns the published folder."""

    def publish(prefix: str, uri: str | None = None, **changes: object) -> Path:
        folder = tmp_path / "made" / prefix
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(prefix.encode() * 100)
        open_output(uri or f"file://{tmp_path / 'out'}").publish(folder, prefix, metadata(**changes))
        return tmp_path / "out" / prefix

    return publish


def test_the_folder_itself(publish: Publish) -> None:
    folder = publish("u/attempt-1/adapter")
    found = locate(str(folder))
    assert (found.folder, found.uri, found.others) == (folder, f"file://{folder}", 0)
    assert found.metadata.job.name == "harbour"
    assert locate(f"file://{folder}/") == found


def test_the_newest_below_counts(publish: Publish, tmp_path: Path) -> None:
    publish("a/attempt-1/adapter", published_at="2026-01-02T00:00:00+00:00")
    newest = publish("b/attempt-1/adapter", published_at="2026-01-03T00:00:00+00:00")
    publish("c/attempt-9/adapter", published_at="2026-01-01T00:00:00+00:00")
    publish("b/attempt-2/merged", published_at="2026-01-04T00:00:00+00:00", kind="merged")
    found = locate(str(tmp_path))
    assert (found.folder, found.others) == (newest, 2)


def test_what_was_not_published_does_not_count(publish: Publish, tmp_path: Path) -> None:
    folder = publish("u/attempt-1/adapter")
    folder.rename(folder.with_name(".adapter.0123"))
    bare = tmp_path / "out" / "plain"
    bare.mkdir()
    (bare / "adapter_config.json").write_text("{}")
    with pytest.raises(RunError, match="holds no published adapter") as caught:
        locate(str(tmp_path / "out"))
    assert caught.value.reason is ExitReason.INVALID_CONFIGURATION


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.write_bytes(b"x" + file.read_bytes()[1:]), "its sha256 is not the manifest's"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes in place of"),
        (lambda file: file.unlink(), "the file is missing"),
    ],
    ids=["changed", "cut off", "missing"],
)
def test_a_damaged_file_is_named(publish: Publish, damage: Callable[[Path], object], says: str) -> None:
    folder = publish("u/attempt-1/adapter")
    damage(folder / "adapter_model.safetensors")
    with pytest.raises(RunError, match=f"adapter_model.safetensors is damaged: .*{says}"):
        locate(str(folder))


@pytest.mark.parametrize(
    ("place", "says"),
    [("nowhere", "does not exist"), ("file.txt", "is a file, not a folder"), ("", "no published adapter")],
)
def test_a_wrong_place(tmp_path: Path, place: str, says: str) -> None:
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(RunError, match=says) as caught:
        locate(str(tmp_path / place))
    assert "finetune run" in caught.value.hint


def test_a_manifest_of_something_else(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    open_output(f"file://{tmp_path}").publish(folder, "other", {"kind": "sculpture"})
    with pytest.raises(RunError, match="is not the manifest of an adapter of this version: kind"):
        locate(str(tmp_path / "other"))


@pytest.mark.slow
def test_a_bucket(
    publish: Publish, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        publish("a/attempt-1/adapter", "s3://data/bots")
        publish("b/attempt-1/adapter", "s3://data/bots", published_at="2026-01-02T00:00:00+00:00")
        found = locate("s3://data/bots")
        assert (found.uri, found.others) == ("s3://data/bots/b/attempt-1/adapter", 1)
        assert (found.folder / "adapter_config.json").read_text() == "{}"
        assert locate("s3://data/bots/b/attempt-1/adapter").folder == found.folder
        with pytest.raises(RunError, match="s3://data/empty holds no published adapter"):
            locate("s3://data/empty")
