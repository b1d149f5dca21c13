"""Data from a bucket and the adapter into one, over TLS, with keys from a Secret's folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from finetune_trainer.storage import open_output
from tests.end_to_end.conftest import FACTS, Bench, kill_a_rank_at
from tests.fixtures.seaweedfs import seaweedfs

pytestmark = pytest.mark.slow


def test_a_run_reads_from_and_publishes_to_a_bucket_and_resumes_from_it(
    bench: Bench, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server").mkdir()
    with seaweedfs(tmp_path / "server") as server:
        server.write_secret(tmp_path / "secrets" / "minio")
        monkeypatch.setenv("FINETUNE_SECRETS", str(tmp_path / "secrets"))
        output = open_output(f"s3://{server.bucket}/bots", credentials="minio")
        rows = tmp_path / "rows"
        rows.mkdir()
        (rows / "facts.jsonl").write_bytes(FACTS.read_bytes())
        output.publish(rows, "data")
        job = bench.job(
            tiny,
            dataset={
                "sources": [
                    {"uri": f"s3://{server.bucket}/bots/data/facts.jsonl", "credentialsSecret": "minio"}
                ]
            },
            training={"maxSteps": 30},
            checkpoint={"steps": 5},
            output={"uri": f"s3://{server.bucket}/bots", "credentialsSecret": "minio"},
        )
        killed = bench.run(job, at=kill_a_rank_at(8))
        assert killed.code == 23
        again = bench.run(job)
        assert again.code == 0, again.errors
        assert [event["step"] >= 5 for event in again.of("checkpoint") if event["resumed"]] == [True]
        assert again.of("prepared")[0]["reused"]
        (artifact,) = again.of("artifact")
        prefix = artifact["uri"].removeprefix(f"s3://{server.bucket}/bots/")
        manifest = output.manifest(prefix)
        assert manifest is not None
        assert manifest.sha256 == artifact["manifest_sha256"]
        folder = output.fetch(prefix, tmp_path / "fetched")
        assert load_file(folder / "adapter_model.safetensors")
        written = "".join(path.read_text() for path in (tmp_path / "state").rglob("*.log"))
        secret = (tmp_path / "secrets" / "minio" / "AWS_SECRET_ACCESS_KEY").read_text().strip()
        assert secret not in written + again.errors + str(again.events) + str(killed.events)
