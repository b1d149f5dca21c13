from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import FileEntry, Output, open_output, open_source
from finetune_trainer.storage.bucket import CHUNK
from tests.fixtures.folders import fill, tree
from tests.fixtures.seaweedfs import S3Server

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(s3: S3Server, tmp_path: Path) -> str:
    return f"s3://{s3.bucket}/{tmp_path.name}"


@pytest.fixture
def out(uri: str) -> Output:
    return open_output(uri)


def big(seed: int) -> bytes:
    """More than two parts, and not a whole number of them."""
    return bytes([seed]) * (2 * CHUNK) + os.urandom(1000)


def test_publishes_over_tls_and_reads_back(out: Output, uri: str, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "small.json": "{}",
        "empty": "",
        "deep/中文 a+b%20&.txt": "1",
        "weights.safetensors": big(1),
    }
    folder = fill(tmp_path / "work", files)
    manifest = out.publish(folder, "uid/adapter", {"step": 3})
    assert out.manifest("uid/adapter") == manifest
    assert sorted(manifest.files) == sorted(files)

    fetched = out.fetch("uid/adapter", tmp_path / "fetched")
    assert tree(fetched) == sorted(files)
    assert all((fetched / path).read_bytes() == (folder / path).read_bytes() for path in files)

    source = open_source(f"{uri}/uid/adapter", purpose="data")
    assert [entry.path for entry in source.entries()] == sorted([*files, "manifest.json"])
    with source.open("weights.safetensors") as file:
        assert file.read(10) == b"\1" * 10
        file.seek(-1000, os.SEEK_END)
        assert file.read() == (folder / "weights.safetensors").read_bytes()[-1000:]
        assert file.seek(CHUNK - 2) == CHUNK - 2
        assert file.read(4) == b"\1" * 4
        file.seek(0)
        assert file.read() == (folder / "weights.safetensors").read_bytes()
    with source.open("empty") as file:
        assert file.read() == b""


def test_a_source_is_one_object_or_a_prefix(out: Output, uri: str, tmp_path: Path) -> None:
    out.publish(fill(tmp_path / "work", {"a.jsonl": "1\n", "a.jsonl.d/x": "2"}), "d")
    one = open_source(f"{uri}/d/a.jsonl", purpose="data")
    assert [(entry.path, entry.size) for entry in one.entries()] == [("a.jsonl", 2)]
    with one.open("a.jsonl") as file:
        assert list(file) == [b"1\n"]
    assert (one.fetch(tmp_path / "cache") / "a.jsonl").read_text() == "1\n"
    folder = open_source(f"{uri}/d/a.jsonl.d", purpose="data")
    assert [entry.path for entry in folder.entries()] == ["x"]


def test_fetches_into_a_folder_per_content_and_continues_there(out: Output, uri: str, tmp_path: Path) -> None:
    out.publish(fill(tmp_path / "work", {"config.json": "{}", "model.safetensors": big(2)}), "m")
    cache = tmp_path / "cache"
    first = open_source(f"{uri}/m", purpose="model").fetch(cache, ["*.json"])
    assert tree(first) == ["config.json", "manifest.json"]
    # What a killed download leaves: a hidden part, and the rest not there.
    (first / ".model.safetensors.part").write_bytes(b"half")
    kept = (first / "config.json").stat().st_ino
    assert open_source(f"{uri}/m", purpose="model").fetch(cache) == first
    assert tree(first) == ["config.json", "manifest.json", "model.safetensors"]
    assert (first / "model.safetensors").stat().st_size == 2 * CHUNK + 1000
    assert (first / "config.json").stat().st_ino == kept

    out.remove("m")
    out.publish(fill(tmp_path / "work", {"config.json": "[]"}), "m")
    second = open_source(f"{uri}/m", purpose="model").fetch(cache)
    assert second != first
    assert (second / "config.json").read_text() == "[]"


def test_an_object_replaced_while_it_is_read_is_noticed(out: Output, uri: str, tmp_path: Path) -> None:
    out.publish(fill(tmp_path / "work", {"a.jsonl": big(1)}), "d")
    source = open_source(f"{uri}/d/a.jsonl", purpose="data")
    with source.open("a.jsonl") as file:
        file.read(10)
        out.upload(fill(tmp_path / "work", {"a.jsonl": big(3)}), "d")
        with pytest.raises(RunError, match="replaced while it was being read"):
            file.read()


def test_the_same_files_again_are_fine_and_others_are_not(out: Output, tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"a": "1"})
    first = out.publish(folder, "p", {"time": 1})
    assert out.publish(folder, "p", {"time": 2}) == first
    files = {"a": FileEntry(size=1, sha256="0" * 64)}
    with pytest.raises(RunError, match="published already, with other files") as caught:
        out.seal("p", files)
    assert caught.value.reason is ExitReason.STORAGE_DENIED


def test_several_writers_then_one_seal(out: Output, tmp_path: Path) -> None:
    files: dict[str, FileEntry] = {}
    for rank in range(3):
        files |= out.upload(fill(tmp_path / f"w{rank}", {f"rank-{rank}": str(rank)}), "c/step-1")
    assert out.published("c") == []
    lost = files | {"rank-3": files["rank-0"]}
    with pytest.raises(RunError, match="rank-3 is damaged: the file is missing"):
        out.seal("c/step-1", lost)
    assert out.manifest("c/step-1") is None
    out.seal("c/step-1", files)
    assert out.published("c") == ["step-1"]


def test_removes_the_manifest_first(out: Output, tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"a": "1", "deep/b": "2"})
    out.publish(folder, "c/p")
    out.publish(folder, "c/p2")
    out.remove("c/p")
    out.remove("c/p")
    assert out.published("c") == ["p2"]
    assert out.publish(fill(folder, {"a": "other"}), "c/p")


def test_damage_is_named(out: Output, tmp_path: Path) -> None:
    out.publish(fill(tmp_path / "work", {"a": "1", "b": "22"}), "p")
    out.upload(fill(tmp_path / "other", {"b": "33"}), "p")
    with pytest.raises(RunError, match="/p/b is damaged: its sha256"):
        out.fetch("p", tmp_path / "t")
    out.upload(fill(tmp_path / "other", {"b": "333"}), "p")
    with pytest.raises(RunError, match="/p/b is damaged: it has 3 bytes in place of 2") as caught:
        out.fetch("p", tmp_path / "t")
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
    assert tree(out.fetch("p", tmp_path / "t2", ["a"])) == ["a"]


def test_sixteen_racers_agree_or_exactly_one_wins(out: Output, tmp_path: Path) -> None:
    same = fill(tmp_path / "same", {"a": "1", "b": "2"})
    with ThreadPoolExecutor(16) as pool:
        manifests = list(pool.map(lambda _: out.publish(same, "same"), range(16)))
    assert len({manifest.sha256 for manifest in manifests}) == 1

    def race(number: int) -> str:
        folder = fill(tmp_path / f"racer-{number}", {f"own-{number}": str(number)})
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


class TestRefusals:
    def test_a_mounted_secret_is_enough(
        self, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3_server.write_secret(tmp_path / "secrets" / "minio")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "of another identity")
        open_output(f"s3://{s3_server.bucket}/{tmp_path.name}", credentials="minio").check_writable()

    @pytest.mark.parametrize(
        ("key", "secret", "code"),
        [
            ("wrong", "wrong", "InvalidAccessKeyId"),
            ("finetune-test-key", "wrong", "SignatureDoesNotMatch"),
            ("reader-test-key", "reader-test-secret", "AccessDenied"),
        ],
    )
    def test_wrong_keys_and_missing_rights(
        self, s3: S3Server, monkeypatch: pytest.MonkeyPatch, key: str, secret: str, code: str
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        with pytest.raises(RunError) as caught:
            open_output(f"s3://{s3.bucket}/x").check_writable()
        assert caught.value.reason is ExitReason.STORAGE_DENIED
        assert code in caught.value.message
        assert secret not in caught.value.message + caught.value.hint

    def test_wrong_keys_when_reading(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        for path in ("", "/x"):
            with pytest.raises(RunError) as caught:
                open_source(f"s3://{s3.bucket}{path}", purpose="data").entries()
            assert caught.value.reason is ExitReason.STORAGE_DENIED

    def test_a_missing_bucket_is_named_with_its_endpoint(self, s3: S3Server, tmp_path: Path) -> None:
        for call in (
            open_output("s3://nowhere/x").check_writable,
            lambda: open_output("s3://nowhere/x").manifest("p"),
            lambda: open_output("s3://nowhere/x").publish(fill(tmp_path / "w", {"a": "1"}), "p"),
            open_source("s3://nowhere/x", purpose="data").entries,
            open_source("s3://nowhere", purpose="data").entries,
        ):
            with pytest.raises(RunError, match=f"bucket `nowhere` does not exist at {s3.endpoint}") as caught:
                call()
            assert caught.value.reason is ExitReason.STORAGE_DENIED

    def test_missing_objects(self, s3: S3Server) -> None:
        for purpose, reason in (
            ("data", ExitReason.INVALID_DATASET),
            ("model", ExitReason.MODEL_UNAVAILABLE),
        ):
            source = open_source(f"s3://{s3.bucket}/no/such", purpose=purpose)  # type: ignore[arg-type]
            with pytest.raises(RunError, match=f"s3://{s3.bucket}/no/such does not exist") as caught:
                source.entries()
            assert caught.value.reason is reason

    def test_an_authority_that_is_not_trusted(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_CA_BUNDLE")
        with pytest.raises(RunError, match="certificate is not trusted") as caught:
            open_output(f"s3://{s3.bucket}/x", patience=0.5).check_writable()
        assert caught.value.reason is ExitReason.STORAGE_DENIED
        assert "AWS_CA_BUNDLE" in caught.value.hint

    def test_an_authority_that_is_no_file(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
        with pytest.raises(RunError, match=r"cannot read /nowhere/ca\.pem"):
            open_output(f"s3://{s3.bucket}/x")

    def test_no_credentials_at_all(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(RunError, match=f"no credentials for s3://{s3.bucket}/x") as caught:
            open_output(f"s3://{s3.bucket}/x")
        assert caught.value.reason is ExitReason.STORAGE_DENIED
