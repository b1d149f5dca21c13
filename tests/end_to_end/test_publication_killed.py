"""What fails after the last step costs no step, and is not taken for finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.conftest import Bench

pytestmark = pytest.mark.slow
STEPS = 4


def kill_the_merge(event: dict[str, Any], process: subprocess.Popen[str]) -> bool:
    if event["event"] != "stage" or event["name"] != "merge":
        return False
    for child in psutil.Process(process.pid).children(recursive=True):
        if "finetune_trainer.artifact.publish" in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)
    return True


def test_a_killed_merge_is_made_up_for_without_training(bench: Bench, tiny: Path) -> None:
    job = bench.job(tiny)
    manifest = json.loads(job.read_text())
    manifest["spec"]["output"]["merge"] = True
    job.write_text(json.dumps(manifest))

    killed = bench.run(job, at=kill_the_merge)
    assert killed.code == 23, killed.errors
    assert len(killed.of("artifact")) == 1
    assert [event["step"] for event in killed.of("checkpoint")] == [STEPS]

    again = bench.run(job)
    assert again.code == 0, again.errors
    assert [event["step"] for event in again.of("checkpoint") if event["resumed"]] == [STEPS]
    assert again.of("step") == []
    assert (again.artifact / "adapter_model.safetensors").is_file()
    assert (again.artifact.with_name("merged") / "manifest.json").is_file()

    assert bench.run(job).of("stage") == []
