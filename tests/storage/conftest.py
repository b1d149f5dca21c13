from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.seaweedfs import S3Server, seaweedfs


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, certificate or cache of this machine plays a part."""
    for key in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_CA_BUNDLE",
        "SSL_CERT_FILE",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "MODELSCOPE_API_TOKEN",
        "MODELSCOPE_ENDPOINT",
    ):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("FINETUNE_SECRETS", str(tmp_path / "secrets"))
    monkeypatch.setenv("FINETUNE_CLAIMS", str(tmp_path / "claims"))
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its writer's keys in the environment."""
    for key, value in s3_server.environment().items():
        monkeypatch.setenv(key, value)
    return s3_server
