from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import Purpose, Source, cache_folder, open_source
from finetune_trainer.storage.hubs import Repository as HubRepository
from finetune_trainer.storage.hubs import repeated
from finetune_trainer.storage.uri import Location
from tests.fixtures.certificates import create_certificates
from tests.fixtures.folders import tree
from tests.fixtures.hubs import Hub, Repository, hub_server

MODEL = {"config.json": b"{}", "model.safetensors": b"w" * 50_000, "onnx/model.onnx": b"o" * 2000}
ROWS = {"train/a.jsonl": b"1\n", "train/b.jsonl": b"x" * 3000}
HUBS = ["hf", "modelscope"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.endpoint)
        # Neither a login of this machine, nor the list of agents that the client asks the real hub for.
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
        monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", {"harnesses": {}})
        hub.repositories["models/org/name"] = Repository(dict(MODEL))
        hub.repositories["datasets/org/rows"] = Repository(
            {"train/a.jsonl": b"1\n", "train/b.jsonl": b"x" * 3000}
        )
        yield hub


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of the hubs rest between attempts of their own."""
    monkeypatch.setattr("time.sleep", lambda _: None)


def model(scheme: str, path: str = "org/name", revision: str = "main", patience: float = 0.6) -> Source:
    return open_source(f"{scheme}://{path}", purpose="model", revision=revision, patience=patience)


@pytest.mark.parametrize(
    ("uri", "kind", "name", "path", "revision"),
    [
        ("hf://gpt2", "model", "gpt2", "", "main"),
        ("hf://org/name", "model", "org/name", "", "main"),
        ("hf://org/name@v1/a/b", "model", "org/name", "a/b", "v1"),
        ("hf://datasets/org/rows/train", "dataset", "org/rows", "train", "main"),
        ("modelscope://datasets/org/rows", "dataset", "org/rows", "", "main"),
    ],
)
def test_repositories_in_uris(uri: str, kind: str, name: str, path: str, revision: str) -> None:
    assert HubRepository.parse(Location.parse(uri), "main") == HubRepository(kind, name, path, revision)


def test_paths_below_a_folder_of_a_repository() -> None:
    folder = HubRepository("model", "org/name", "a/b", "main")
    assert [folder.below(path) for path in ("a/b", "a/b/c", "a/bc", "x")] == ["b", "c", None, None]
    assert folder.allow(["*.json"]) == ["a/b", "a/b/*.json"]
    assert folder.allow(None) == ["a/b", "a/b/*"]
    assert HubRepository("model", "org/name", "", "main").allow(None) is None


@pytest.mark.usefixtures("no_pauses")
def test_only_what_may_pass_is_repeated_and_not_for_ever() -> None:
    calls: list[int] = []

    def fail_twice() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError
        return "done"

    assert repeated(fail_twice, lambda error: isinstance(error, ConnectionError), 10) == "done"
    calls.clear()
    with pytest.raises(ConnectionError):
        repeated(fail_twice, lambda _: False, 10)
    calls.clear()
    with pytest.raises(ConnectionError):
        repeated(fail_twice, lambda _: True, 0.1)
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", HUBS)
class TestBothHubs:
    def test_a_model_is_listed_fetched_and_kept(self, hub: Hub, scheme: str, tmp_path: Path) -> None:
        source = model(scheme)
        assert [(entry.path, entry.size) for entry in source.entries()] == [
            ("config.json", 2),
            ("model.safetensors", 50_000),
            ("onnx/model.onnx", 2000),
        ]
        folder = source.fetch(tmp_path / "cache", ["*.json", "*.safetensors"])
        assert tree(folder) == ["config.json", "model.safetensors"]
        assert (folder / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
        assert folder.is_relative_to(tmp_path / "cache")

        hub.seen.clear()
        assert model(scheme).fetch(tmp_path / "cache", ["*.json", "*.safetensors"]) == folder
        assert not [line for line in hub.seen if "safetensors" in line]

    def test_a_broken_download_is_continued(self, hub: Hub, scheme: str, tmp_path: Path) -> None:
        hub.truncate = 1
        folder = model(scheme, patience=10).fetch(tmp_path / "cache")
        assert (folder / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
        assert hub.truncate == 0

    def test_a_moved_branch_gets_a_folder_of_its_own(self, hub: Hub, scheme: str, tmp_path: Path) -> None:
        first, before = model(scheme).fetch(tmp_path), model(scheme).fingerprint()
        hub.repositories["models/org/name"].files = {"config.json": b"[1]"}
        second = model(scheme).fetch(tmp_path)
        assert tree(second) == ["config.json"]
        assert (first / "model.safetensors").is_file()
        assert model(scheme).fingerprint() != before

    def test_rows_of_a_data_set_and_a_single_file(self, hub: Hub, scheme: str) -> None:
        folder = open_source(f"{scheme}://datasets/org/rows/train", purpose="data")
        assert [entry.path for entry in folder.entries()] == ["a.jsonl", "b.jsonl"]
        one = open_source(f"{scheme}://datasets/org/rows/train/a.jsonl", purpose="data")
        assert [entry.path for entry in one.entries()] == ["a.jsonl"]
        for source, path in ((folder, "a.jsonl"), (one, "a.jsonl")):
            with source.open(path) as file:
                assert file.read() == b"1\n"
            assert Path(file.name).is_relative_to(cache_folder())
            assert "a.jsonl" in tree(source.fetch(cache_folder()))
        with pytest.raises(RunError, match=r"holds no file `c\.jsonl`"):
            folder.open("c.jsonl")

    @pytest.mark.parametrize(
        ("path", "revision", "words"),
        [("org/other", "main", "org/other"), ("org/name", "v9", "at revision `v9`")],
    )
    def test_what_is_not_there(
        self, hub: Hub, scheme: str, path: str, revision: str, words: str, tmp_path: Path
    ) -> None:
        for purpose, reason in _reasons().items():
            source = open_source(f"{scheme}://{path}", purpose=purpose, revision=revision)
            for call in (source.entries, lambda source=source: source.fetch(tmp_path)):
                with pytest.raises(RunError, match=words) as caught:
                    call()
                assert caught.value.reason is reason
                assert caught.value.hint

    def test_nothing_that_matches(self, hub: Hub, scheme: str, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"holds no file that matches \*\.bin") as caught:
            model(scheme).fetch(tmp_path, ["*.bin"])
        assert caught.value.reason is ExitReason.MODEL_UNAVAILABLE

    def test_a_gated_model_says_what_to_do(self, hub: Hub, scheme: str, tmp_path: Path) -> None:
        hub.repositories["models/org/name"].granted = False
        with pytest.raises(RunError, match="is not granted") as caught:
            model(scheme).fetch(tmp_path)
        assert caught.value.reason is ExitReason.MODEL_UNAVAILABLE
        assert "licence" in caught.value.hint
        assert "credentialsSecret" in caught.value.hint

    def test_a_private_model_needs_its_token(self, hub: Hub, scheme: str, tmp_path: Path) -> None:
        hub.repositories["models/org/name"].token = "the-right-token"
        key = {"hf": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}[scheme]
        secret = tmp_path / "secrets" / "hub"
        secret.mkdir(parents=True)
        (secret / key).write_text("a-wrong-token")
        with pytest.raises(RunError) as caught:
            open_source(f"{scheme}://org/name", purpose="model", credentials="hub", patience=0).entries()
        assert caught.value.reason in {ExitReason.MODEL_UNAVAILABLE, ExitReason.STORAGE_DENIED}
        assert "token" in caught.value.hint + caught.value.message
        assert "a-wrong-token" not in caught.value.hint + caught.value.message
        (secret / key).write_text("the-right-token\n")
        source = open_source(f"{scheme}://org/name", purpose="model", credentials="hub")
        assert tree(source.fetch(tmp_path / "cache")) == sorted(MODEL)

    @pytest.mark.usefixtures("no_pauses")
    def test_an_outage_that_passes_and_one_that_stays(self, hub: Hub, scheme: str) -> None:
        hub.outage = 1
        assert model(scheme, patience=20).entries()
        hub.outage = 10**6
        with pytest.raises(RunError, match="is unavailable for") as caught:
            model(scheme).entries()
        assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE

    @pytest.mark.usefixtures("no_pauses")
    def test_nobody_listens(
        self, hub: Hub, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:1")
        for call in (lambda: model(scheme).entries(), lambda: model(scheme).fetch(tmp_path)):
            with pytest.raises(
                RunError, match=r"http://127\.0\.0\.1:1 .*: the connection was refused"
            ) as caught:
                call()
            assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE

    @pytest.mark.usefixtures("no_pauses")
    def test_a_private_authority(
        self, hub: Hub, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificates = create_certificates(tmp_path)
        with hub_server(certificates) as secure:
            secure.repositories |= hub.repositories
            monkeypatch.setenv("HF_ENDPOINT", secure.endpoint)
            monkeypatch.setenv("MODELSCOPE_ENDPOINT", secure.endpoint)
            with pytest.raises(RunError, match="certificate is not trusted") as caught:
                model(scheme, patience=0).entries()
            assert caught.value.reason is ExitReason.STORAGE_DENIED
            huggingface_hub.close_session()  # it keeps a connection pool, and with it what it trusts
            monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.authority))
            assert tree(model(scheme).fetch(tmp_path / "cache")) == sorted(MODEL)
        huggingface_hub.close_session()


@pytest.mark.slow
def test_a_complete_snapshot_serves_while_the_hub_is_down(hub: Hub, tmp_path: Path) -> None:
    folder = model("hf").fetch(tmp_path, ["*.json"])
    hub.outage = 10**6
    assert model("hf").fetch(tmp_path, ["*.json"]) == folder
    with pytest.raises(RunError) as caught:
        model("hf").fetch(tmp_path)
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE


def _reasons() -> dict[Purpose, ExitReason]:
    return {"model": ExitReason.MODEL_UNAVAILABLE, "data": ExitReason.INVALID_DATASET}
