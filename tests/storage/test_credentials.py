from __future__ import annotations

from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.credentials import credentials


def mount(tmp_path: Path, name: str, **values: str) -> Path:
    folder = tmp_path / "secrets" / name
    folder.mkdir(parents=True)
    for key, value in values.items():
        (folder / key).write_text(value)
    return folder


def test_the_environment_serves_where_no_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("HF_TOKEN", "token")
    assert dict(credentials(None, "s3")) == {"AWS_ACCESS_KEY_ID": "key"}
    assert dict(credentials(None, "hf")) == {"HF_TOKEN": "token"}
    assert dict(credentials(None, "file")) == {}


def test_mounted_files_go_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(tmp_path, "minio", AWS_ACCESS_KEY_ID="mounted\n", AWS_SECRET_ACCESS_KEY="secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://minio")
    assert dict(credentials("minio", "s3")) == {
        "AWS_ACCESS_KEY_ID": "mounted",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": "https://minio",
    }


def test_a_session_token_of_another_identity_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(tmp_path, "minio", AWS_ACCESS_KEY_ID="mounted", AWS_SECRET_ACCESS_KEY="secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    assert "AWS_SESSION_TOKEN" not in credentials("minio", "s3")


def test_a_mounted_certificate_stands_for_its_path(tmp_path: Path) -> None:
    folder = mount(tmp_path, "minio", AWS_CA_BUNDLE="-----BEGIN CERTIFICATE-----\n", AWS_REGION="x")
    assert credentials("minio", "s3")["AWS_CA_BUNDLE"] == str(folder / "AWS_CA_BUNDLE")


def test_the_environment_serves_where_the_folder_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "token")
    assert credentials("nowhere", "hf")["HF_TOKEN"] == "token"


def test_no_folder_and_no_variable_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither a key of another service nor a certificate stands in for a key.
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.setenv("SSL_CERT_FILE", "/ca.pem")
    with pytest.raises(RunError) as caught:
        credentials("minio", "s3")
    assert caught.value.reason is ExitReason.STORAGE_DENIED
    assert "`minio`" in caught.value.message
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize("name", ["../other", "a/b", "..", ""])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(RunError) as caught:
        credentials(name, "s3")
    assert caught.value.reason is ExitReason.INVALID_CONFIGURATION


def test_values_are_never_shown(tmp_path: Path) -> None:
    mount(tmp_path, "minio", AWS_ACCESS_KEY_ID="AKIA123", AWS_SECRET_ACCESS_KEY="hush")
    keys = credentials("minio", "s3")
    assert f"{keys} {keys!r} {[keys]}".count("hush") == 0
    assert "AWS_SECRET_ACCESS_KEY" in repr(keys)


def test_an_unreadable_file_does_not_leak_into_the_message(tmp_path: Path) -> None:
    folder = mount(tmp_path, "minio")
    (folder / "AWS_ACCESS_KEY_ID").write_bytes(b"\xff\xfehush")
    with pytest.raises(RunError, match="AWS_ACCESS_KEY_ID cannot be read: UnicodeDecodeError") as caught:
        credentials("minio", "s3")
    assert "hush" not in caught.value.message
