"""A run that is broken off and started again learns what it would have learned."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Bench, kill_a_rank_at, ranks

pytestmark = pytest.mark.slow
STEPS = 40


@pytest.fixture
def spec() -> dict[str, Any]:
    return {
        "training": {
            "maxSteps": STEPS,
            "learningRate": "1e-3",
            "globalBatchSize": 8,
            "precision": "FP32",
            "logSteps": 1,
        },
        "adapter": {"rank": 4, "alpha": 8, "dropout": "0.1"},
        "checkpoint": {"steps": 5, "keep": 2},
    }


def interrupt(event: dict[str, Any], process: subprocess.Popen[str]) -> bool:
    if event["event"] != "step" or event["step"] < 12:
        return False
    process.send_signal(signal.SIGINT)
    return True


def test_a_killed_rank_and_the_same_command_again(bench: Bench, tiny: Path, spec: dict[str, Any]) -> None:
    undisturbed = bench.run(bench.job(tiny, output="undisturbed", **spec))
    assert undisturbed.code == 0, undisturbed.errors
    assert list(undisturbed.losses) == list(range(1, STEPS + 1))

    job = bench.job(tiny, output="killed", **spec)
    killed = bench.run(job, at=kill_a_rank_at(12))
    assert killed.code == 23
    (outcome,) = [event for event in killed.of("outcome") if event["reason"] != "Succeeded"][-1:]
    assert "signal 9" in outcome["message"]
    assert "Traceback" not in killed.errors
    assert ranks() == []

    again = bench.run(job)
    assert again.code == 0, again.errors
    (resumed,) = [event for event in again.of("checkpoint") if event["resumed"]]
    assert resumed["step"] >= 10
    assert min(again.losses) == resumed["step"] + 1
    assert again.losses == {step: undisturbed.losses[step] for step in again.losses}
    assert again.of("prepared")[0]["reused"]

    log = [json.loads(line) for line in (again.artifact / "train-log.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["loss"] for line in log if line["event"] == "step"}
    assert steps == undisturbed.losses
    kept = sorted(path.name for path in again.artifact.parents[1].joinpath("checkpoints").iterdir())
    assert len(kept) == 2


def test_ctrl_c_takes_a_checkpoint_and_the_same_command_goes_on(
    bench: Bench, tiny: Path, spec: dict[str, Any]
) -> None:
    job = bench.job(tiny, **spec)
    stopped = bench.run(job, at=interrupt)
    assert stopped.code == 21, stopped.errors
    assert "run the same command to continue" in stopped.errors + json.dumps(stopped.events)
    last = stopped.of("checkpoint")[-1]["step"]
    assert last >= 12

    again = bench.run(job)
    assert again.code == 0, again.errors
    assert [event["step"] for event in again.of("checkpoint") if event["resumed"]] == [last]
    assert max(again.losses) == STEPS

    finished = bench.run(job)
    assert finished.code == 0
    assert finished.of("step") == []
