from __future__ import annotations

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.connect import AWS, _sends_checksums, connect, endpoint_of
from finetune_trainer.storage.credentials import Credentials
from finetune_trainer.storage.uri import Location


@pytest.mark.parametrize(
    ("endpoint", "wish", "sent"),
    [
        (AWS, "", True),
        ("http://minio:9000", "", True),
        ("https://minio:9000", "", False),
        ("https://minio:9000", "when_supported", True),
        ("http://minio:9000", "WHEN_REQUIRED", False),
        (AWS, "when_required", False),
    ],
)
def test_checksums_go_where_they_are_understood_or_needed(endpoint: str, wish: str, sent: bool) -> None:
    assert _sends_checksums(endpoint, wish) is sent


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://b/x", "AWS_ENDPOINT_URL"),
        ("s3://b/x", "AWS_ENDPOINT_URL_S3"),
        ("az://b/x", "AZURE_STORAGE_ENDPOINT"),
    ],
)
@pytest.mark.parametrize(
    "address",
    ["minio:9000", "127.0.0.1:9000", "minio", "http://", "ftp://minio", "http://a b", "https://x:99999"],
)
def test_an_endpoint_that_is_no_url_is_named(uri: str, name: str, address: str) -> None:
    keys = Credentials({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", name: address})
    location = Location.parse(uri)
    with pytest.raises(RunError) as caught:
        connect(location, keys, endpoint_of(location, keys), patience=0)
    assert caught.value.reason is ExitReason.STORAGE_DENIED
    assert name in caught.value.message
    assert repr(address) in caught.value.message
    assert "http://" in caught.value.hint
