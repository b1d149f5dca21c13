"""Google Cloud Storage and Azure Blob Storage: their settings, and the calls of publishing and reading."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import open_output, open_source
from finetune_trainer.storage.bucket import CHUNK
from tests.fixtures.blobs import Blobs, blob_server
from tests.fixtures.certificates import create_certificates
from tests.fixtures.folders import fill, tree

pytestmark = pytest.mark.slow

ACCOUNT = json.dumps(
    {"gcs_base_url": "", "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    certificates = create_certificates(tmp_path)
    with blob_server(certificates) as blobs:
        for name, values in {
            "google": {
                "GOOGLE_SERVICE_ACCOUNT": ACCOUNT.replace('url": "', f'url": "{blobs.endpoint}'),
            },
            "azure": {
                "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"key").decode(),
                "AZURE_STORAGE_ENDPOINT": blobs.endpoint,
            },
        }.items():
            values["SSL_CERT_FILE"] = certificates.authority.read_text()
            fill(tmp_path / "secrets" / name, dict(values))
        yield blobs


@pytest.mark.parametrize(("scheme", "secret"), [("gs", "google"), ("az", "azure")])
def test_publishes_and_reads_back(blobs: Blobs, tmp_path: Path, scheme: str, secret: str) -> None:
    out = open_output(f"{scheme}://bucket/adapters", credentials=secret, patience=2)
    out.check_writable()
    folder = fill(tmp_path / "work", {"a b.json": "{}", "deep/large": b"x" * (2 * CHUNK + 5)})
    manifest = out.publish(folder, "uid/p", {"step": 1})
    assert sorted(blobs.objects) == [
        "bucket/adapters/uid/p/a b.json",
        "bucket/adapters/uid/p/deep/large",
        "bucket/adapters/uid/p/manifest.json",
    ]
    assert out.publish(folder, "uid/p") == manifest
    assert out.published("uid") == ["p"]
    fetched = out.fetch("uid/p", tmp_path / "t")
    assert tree(fetched) == ["a b.json", "deep/large"]
    assert (fetched / "deep/large").read_bytes() == b"x" * (2 * CHUNK + 5)

    source = open_source(f"{scheme}://bucket/adapters/uid/p/a b.json", purpose="data", credentials=secret)
    with source.open("a b.json") as file:
        assert file.read() == b"{}"
    with pytest.raises(RunError, match=f"{scheme}://bucket/no does not exist") as caught:
        open_source(f"{scheme}://bucket/no", purpose="data", credentials=secret).entries()
    assert caught.value.reason is ExitReason.INVALID_DATASET
    out.remove("uid/p")
    assert blobs.objects == {}


@pytest.mark.parametrize(("scheme", "secret"), [("gs", "google"), ("az", "azure")])
def test_the_manifest_is_written_on_condition(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, secret: str
) -> None:
    out = open_output(f"{scheme}://bucket", credentials=secret, patience=2)
    files = out.upload(fill(tmp_path / "work", {"a": "1"}), "p")
    winner = out.seal("p", files, {"writer": 1})
    # A second writer that looked before the first one's manifest was there.
    looks = iter([None, winner])
    monkeypatch.setattr(out, "manifest", lambda _: next(looks))
    assert out.seal("p", files, {"writer": 2}) == winner
    assert blobs.objects["bucket/p/manifest.json"] == winner.encode()


def test_settings_that_cannot_be_used(blobs: Blobs, tmp_path: Path) -> None:
    fill(tmp_path / "secrets" / "azure", {"AZURE_STORAGE_ACCOUNT_KEY": "not base64, but secret"})
    with pytest.raises(RunError, match="cannot be opened with these credentials") as caught:
        open_output("az://bucket/x", credentials="azure")
    assert caught.value.reason is ExitReason.STORAGE_DENIED
    assert "secret" not in caught.value.message + caught.value.hint
    assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.hint
