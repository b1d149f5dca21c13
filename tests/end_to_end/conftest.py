"""`finetune run` as a person runs it: real stages, agents and ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.models import tiny_llama

FACTS = Path(__file__).parents[2] / "examples" / "quickstart" / "facts.jsonl"


Act = Callable[[dict[str, Any], subprocess.Popen[str]], bool]
"""What to do at an event of a run; True once it is done."""


@dataclass
class Run:
    """One call of `finetune run --json`: its events, what it said besides, and how it ended."""

    events: list[dict[str, Any]] = field(default_factory=list)
    errors: str = ""
    code: int = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind, in order."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def losses(self) -> dict[int, float]:
        """Loss by step."""
        return {event["step"]: event["loss"] for event in self.of("step")}

    @property
    def artifact(self) -> Path:
        """The published folder."""
        (event,) = self.of("artifact")
        return Path(event["uri"].removeprefix("file://"))


@dataclass(frozen=True)
class Bench:
    """A place to run jobs in: a folder of its own for state and output."""

    folder: Path

    def job(
        self, model: Path, /, *, name: str = "job", output: str | dict[str, str] = "out", **spec: Any
    ) -> Path:
        """Write a job file; `spec` is merged over a small CPU job, two levels deep.

        `output` is a folder's name or the whole block.
        """
        job: dict[str, Any] = {
            "model": {"uri": f"file://{model}"},
            "dataset": {"sources": [{"uri": f"file://{FACTS}"}], "maxLength": 256},
            "adapter": {"rank": 4, "alpha": 8},
            "training": {
                "maxSteps": 4,
                "learningRate": "1e-3",
                "globalBatchSize": 8,
                "precision": "FP32",
                "logSteps": 1,
            },
            "workers": {"replicas": 1, "gpusPerWorker": 0},
            "output": {"uri": f"file://{self.folder / output}"} if isinstance(output, str) else output,
        }
        for key, value in spec.items():
            job[key] = {**job.get(key, {}), **value} if isinstance(value, dict) else value
        path = self.folder / f"{name}.yaml"
        manifest = {"apiVersion": "finetune.dev/v1alpha1", "kind": "FineTuneJob", "metadata": {"name": name}}
        # JSON is YAML too, and quotes "1e-3", which PyYAML would not.
        path.write_text(json.dumps({**manifest, "spec": job}, indent=2))
        return path

    def run(self, job: Path, *, at: Act | None = None) -> Run:
        """Run a job to its end; `at` sees each event and may act, until it says that it has."""
        command = [sys.executable, "-m", "finetune_operator.cli", "run", str(job), "--json"]
        errors = self.folder / "errors.txt"
        run = Run()
        with (
            errors.open("w") as stderr,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=self.folder,
                env={**os.environ, "FINETUNE_STATE": str(self.folder / "state")},
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    event = json.loads(line)
                    run.events.append(event)
                    if at is not None and at(event, process):
                        at = None
                run.code = process.wait(timeout=60)
            finally:
                process.kill()
        run.errors = errors.read_text()
        return run


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A fresh place to run jobs in."""
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def ranks() -> list[int]:
    """Process ids of all ranks on this machine that belong to this test's process."""
    import psutil

    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "finetune_trainer.train" in child.cmdline()
    ]


def kill_a_rank_at(step: int) -> Act:
    """Kill the first rank once a line of optimizer step `step`, or of a later one, is out."""

    def act(event: dict[str, Any], process: subprocess.Popen[str]) -> bool:
        if event["event"] != "step" or event["step"] < step:
            return False
        os.kill(ranks()[0], signal.SIGKILL)
        return True

    return act
