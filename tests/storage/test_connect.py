from __future__ import annotations

import pytest

from finetune_trainer.storage.connect import AWS, _sends_checksums


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
