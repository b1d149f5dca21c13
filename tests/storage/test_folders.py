from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import FileEntry, Output, Source, open_output, open_source
from tests.fixtures.folders import fill, tree


def read(source: Source, path: str) -> bytes:
    with source.open(path) as file:
        return file.read()


@pytest.fixture
def out(tmp_path: Path) -> Output:
    return open_output(f"file://{tmp_path}/out")


class TestSource:
    def test_a_folder_is_read_where_it_is(self, tmp_path: Path) -> None:
        folder = fill(tmp_path / "d", {"b/x.jsonl": "12", "a.jsonl": "1"})
        source = open_source(f"file://{folder}", purpose="data")
        assert [(entry.path, entry.size) for entry in source.entries()] == [("a.jsonl", 1), ("b/x.jsonl", 2)]
        assert read(source, "b/x.jsonl") == b"12"
        assert source.fetch(tmp_path / "cache") == folder
        assert not (tmp_path / "cache").exists()

    def test_a_single_file(self, tmp_path: Path) -> None:
        fill(tmp_path / "d", {"a.jsonl": "1", "b.jsonl": "2"})
        source = open_source(f"file://{tmp_path}/d/a.jsonl", purpose="data")
        assert [entry.path for entry in source.entries()] == ["a.jsonl"]
        assert read(source, "a.jsonl") == b"1"
        assert source.fetch(tmp_path / "cache") == tmp_path / "d"

    def test_the_fingerprint_changes_with_the_content(self, tmp_path: Path) -> None:
        folder = fill(tmp_path / "d", {"a": "1"})
        uri = f"file://{folder}"
        before = open_source(uri, purpose="data").fingerprint()
        assert open_source(uri, purpose="data").fingerprint() == before
        os.utime(folder / "a", ns=(1, 1))
        touched = open_source(uri, purpose="data").fingerprint()
        fill(folder, {"b": ""})
        assert len({before, touched, open_source(uri, purpose="data").fingerprint()}) == 3

    @pytest.mark.parametrize(
        ("purpose", "reason"),
        [("model", ExitReason.MODEL_UNAVAILABLE), ("data", ExitReason.INVALID_DATASET)],
    )
    def test_what_is_not_there(self, tmp_path: Path, purpose: str, reason: ExitReason) -> None:
        (tmp_path / "empty").mkdir()
        fill(tmp_path / "d", {"a": "1"})
        for uri, patterns in [("nowhere", None), ("empty", None), ("d", ["*.safetensors"])]:
            source = open_source(f"file://{tmp_path}/{uri}", purpose=purpose)  # type: ignore[arg-type]
            with pytest.raises(RunError) as caught:
                source.fetch(tmp_path / "cache", patterns)
            assert caught.value.reason is reason
            assert f"{tmp_path}/{uri}" in caught.value.message

    def test_links_may_lead_anywhere_on_ones_own_machine_but_not_out_of_a_claim(self, tmp_path: Path) -> None:
        secret = fill(tmp_path / "secrets" / "hf", {"HF_TOKEN": "hush"}) / "HF_TOKEN"
        claim = fill(tmp_path / "claims" / "team", {"data/a.jsonl": "1", "blobs/b": "22"})
        (claim / "data" / "b.jsonl").symlink_to("../blobs/b")
        source = open_source("pvc://team/data", purpose="data")
        assert [(entry.path, entry.size) for entry in source.entries()] == [("a.jsonl", 1), ("b.jsonl", 2)]

        (claim / "data" / "c.jsonl").symlink_to(secret)
        assert read(open_source(f"file://{claim}/data", purpose="data"), "c.jsonl") == b"hush"
        with pytest.raises(RunError, match="leads out of claim `team`") as caught:
            open_source("pvc://team/data", purpose="data").entries()
        assert caught.value.reason is ExitReason.STORAGE_DENIED
        with pytest.raises(RunError, match="leads out"):
            source.open("c.jsonl")

    def test_a_loop_of_links_ends(self, tmp_path: Path) -> None:
        folder = fill(tmp_path / "d", {"a": "1"})
        (folder / "again").symlink_to(folder)
        assert [entry.path for entry in open_source(f"file://{folder}", purpose="data").entries()] == ["a"]

    def test_a_broken_link_and_a_pipe(self, tmp_path: Path) -> None:
        folder = fill(tmp_path / "d", {"a": "1"})
        os.mkfifo(folder / "pipe")
        assert [entry.path for entry in open_source(f"file://{folder}", purpose="data").entries()] == ["a"]
        (folder / "broken").symlink_to("nowhere")
        with pytest.raises(RunError, match="broken: No such file"):
            open_source(f"file://{folder}", purpose="data").entries()

    def test_a_claim_that_is_not_mounted(self) -> None:
        with pytest.raises(RunError, match="claim `team` is not mounted") as caught:
            open_source("pvc://team/data", purpose="data")
        assert "FINETUNE_CLAIMS" in caught.value.hint


class TestOutput:
    def test_publishes_whole_and_reads_back(self, out: Output, tmp_path: Path) -> None:
        folder = fill(tmp_path / "work", {"a.txt": "1", "deep/b.txt": "22"})
        manifest = out.publish(folder, "uid/adapter", {"step": 3})
        assert tree(tmp_path / "out") == [
            "uid/adapter/a.txt",
            "uid/adapter/deep/b.txt",
            "uid/adapter/manifest.json",
        ]
        assert out.manifest("uid/adapter") == manifest
        assert manifest.metadata == {"step": 3}
        assert out.fetch("uid/adapter", tmp_path / "unused") == tmp_path / "out" / "uid" / "adapter"
        assert out.manifest("uid") is None
        assert tree(folder) == ["a.txt", "deep/b.txt"]

    def test_the_same_files_again_are_fine_and_others_are_not(self, out: Output, tmp_path: Path) -> None:
        folder = fill(tmp_path / "work", {"a": "1"})
        first = out.publish(folder, "p", {"time": 1})
        assert out.publish(folder, "p", {"time": 2}) == first
        fill(folder, {"a": "2"})
        with pytest.raises(RunError, match="published already, with other files") as caught:
            out.publish(folder, "p")
        assert caught.value.reason is ExitReason.STORAGE_DENIED
        assert (tmp_path / "out" / "p" / "a").read_text() == "1"
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["p"]

    def test_several_writers_then_one_seal(self, out: Output, tmp_path: Path) -> None:
        files: dict[str, FileEntry] = {}
        for rank in range(3):
            files |= out.upload(fill(tmp_path / f"w{rank}", {f"rank-{rank}": str(rank)}), "step-1")
        assert out.manifest("step-1") is None
        manifest = out.seal("step-1", files, {"step": 1})
        assert sorted(manifest.files) == ["rank-0", "rank-1", "rank-2"]
        assert out.seal("step-1", files) == manifest

    def test_a_seal_wants_every_file_and_drops_what_an_earlier_attempt_left(
        self, out: Output, tmp_path: Path
    ) -> None:
        out.upload(fill(tmp_path / "old", {"stale": "x"}), "p")
        files = out.upload(fill(tmp_path / "new", {"a": "1"}), "p")
        lost = files | {"b": files["a"]}
        with pytest.raises(RunError, match="p/b is damaged: the file was not uploaded"):
            out.seal("p", lost)
        out.seal("p", files)
        assert tree(tmp_path / "out") == ["p/a", "p/manifest.json"]

    def test_lists_what_is_published(self, out: Output, tmp_path: Path) -> None:
        folder = fill(tmp_path / "work", {"a": "1"})
        assert out.published("uid/checkpoints") == []
        for step in (20, 3):
            out.publish(folder, f"uid/checkpoints/step-{step:08d}")
        out.upload(folder, "uid/checkpoints/step-00000030")
        fill(tmp_path / "out" / "uid" / "checkpoints" / "foreign", {"x": ""})
        assert out.published("uid/checkpoints") == ["step-00000003", "step-00000020"]

    def test_damage_is_named(self, out: Output, tmp_path: Path) -> None:
        out.publish(fill(tmp_path / "work", {"a": "1", "b": "22"}), "p")
        (tmp_path / "out" / "p" / "b").write_text("33")
        with pytest.raises(RunError, match="out/p/b is damaged: its sha256") as caught:
            out.fetch("p", tmp_path / "t")
        assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
        assert out.fetch("p", tmp_path / "t", ["a"])
        with pytest.raises(RunError, match="out/q is not published"):
            out.fetch("q", tmp_path / "t")

    def test_removes_a_prefix_and_its_hidden_leftovers(self, out: Output, tmp_path: Path) -> None:
        folder = fill(tmp_path / "work", {"a": "1"})
        out.publish(folder, "c/p")
        out.publish(folder, "c/p2")
        out.upload(folder, "c/p")
        out.remove("c/p")
        out.remove("c/p")
        out.remove("never/there")
        assert out.published("c") == ["p2"]
        assert [path.name for path in (tmp_path / "out" / "c").iterdir()] == ["p2"]

    def test_what_nobody_published_is_not_overwritten(self, out: Output, tmp_path: Path) -> None:
        fill(tmp_path / "out" / "p", {"thesis.tex": "years"})
        with pytest.raises(RunError, match="was not published by a run") as caught:
            out.publish(fill(tmp_path / "work", {"a": "1"}), "p")
        assert caught.value.reason is ExitReason.STORAGE_DENIED
        assert tree(tmp_path / "out") == ["p/thesis.tex"]

    def test_sixteen_racers_agree_or_exactly_one_wins(self, out: Output, tmp_path: Path) -> None:
        same = fill(tmp_path / "same", {f"{i}": "x" * i for i in range(20)})
        with ThreadPoolExecutor(16) as pool:
            manifests = list(pool.map(lambda _: out.publish(same, "same"), range(16)))
        assert len({manifest.sha256 for manifest in manifests}) == 1

        def race(number: int) -> str:
            folder = fill(tmp_path / f"racer-{number}", {"who": str(number), f"own-{number}": ""})
            try:
                return out.publish(folder, "race").sha256
            except RunError as error:
                return error.message

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(race, range(16)))
        winner = out.manifest("race")
        assert winner is not None
        assert results.count(winner.sha256) == 1
        assert sum("published already" in result for result in results) == 15
        out.fetch("race", tmp_path / "t")
        assert len(tree(tmp_path / "out" / "race")) == 3

    def test_links_are_not_published(self, out: Output, tmp_path: Path) -> None:
        folder = fill(tmp_path / "work", {"a": "1"})
        (folder / "b").symlink_to("/etc/passwd")
        with pytest.raises(RunError, match="work/b is not a regular file"):
            out.publish(folder, "p")
        assert out.manifest("p") is None

    def test_preflight(self, out: Output, tmp_path: Path) -> None:
        out.check_writable()
        assert list((tmp_path / "out").iterdir()) == []
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match="cannot write"):
            open_output(f"file://{tmp_path}/file/below").check_writable()
        with pytest.raises(RunError, match="not mounted"):
            open_output("pvc://team/x").check_writable()

    def test_preflight_without_permission(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir(mode=0o500)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)  # root may write anywhere
            with pytest.raises(RunError) as caught:
                open_output(f"file://{tmp_path}/mine/x").check_writable()
        finally:
            os.seteuid(user)
        assert caught.value.reason is ExitReason.STORAGE_DENIED

    def test_hubs_are_no_output(self) -> None:
        with pytest.raises(RunError, match="read only"):
            open_output("hf://org/name")


def test_a_claim_serves_as_output(tmp_path: Path) -> None:
    (tmp_path / "claims" / "team").mkdir(parents=True)
    out = open_output("pvc://team/adapters")
    out.publish(fill(tmp_path / "work", {"a": "1"}), "uid/x")
    assert tree(tmp_path / "claims") == ["team/adapters/uid/x/a", "team/adapters/uid/x/manifest.json"]
    assert out.uri("uid/x", "a") == "pvc://team/adapters/uid/x/a"
    shutil.rmtree(tmp_path / "claims")
    with pytest.raises(RunError, match="not mounted"):
        out.publish(tmp_path / "work", "uid/y")
