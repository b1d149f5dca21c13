"""Agents as real processes around fake ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from finetune_trainer.config import (
    Dataset,
    Event,
    Model,
    Outcome,
    Output,
    Retry,
    RunConfig,
    Source,
    Workers,
    parse_event,
)
from finetune_trainer.worker.channel import free_port

FAKES = Path(__file__).parent / "fakes"
# The fakes need the standard library only, and start the faster for it.
BARE_PYTHON = [sys.executable, "-P", "-S"]


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    def make(**changes: object) -> RunConfig:
        values: dict[str, object] = {
            "name": "demo",
            "uid": "demo-1234",
            "model": Model(uri="file:///model"),
            "dataset": Dataset(sources=[Source(uri="file:///rows.jsonl")]),
            "workers": Workers(replicas=1, gpus_per_worker=0),
            "output": Output(uri=(tmp_path / "output").as_uri()),
            "retry": Retry(rendezvous_seconds=20, hang_seconds=30),
        }
        return RunConfig.model_validate(values | changes)

    return make


@dataclass
class Worker:
    """One agent under test."""

    process: subprocess.Popen[bytes]
    work: Path
    output: Path

    @property
    def events(self) -> list[Event]:
        return [
            parse_event(line)
            for line in self.output.read_text().splitlines(keepends=True)
            if line[-1] == "\n"
        ]

    @property
    def errors(self) -> str:
        return self.output.with_suffix(".err").read_text()

    def wait(self, seconds: float = 30) -> Outcome:
        self.process.wait(seconds)
        outcome = self.events[-1]
        assert isinstance(outcome, Outcome), self.errors
        assert self.process.returncode == outcome.reason.exit_code
        return outcome

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def rank_pid(self, rank: int, seconds: float = 20) -> int:
        """The process id of a rank that has made at least one step."""
        until(lambda: (self.work / f"heartbeat-{rank}").exists(), seconds)
        return int((self.work / f"pid-{rank}").read_text())


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Gang:
    """Starts agents that know where to find each other, and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[Worker] = []

    alive = staticmethod(alive)
    until = staticmethod(until)

    @staticmethod
    def stage(*arguments: str) -> list[str]:
        return [*BARE_PYTHON, str(FAKES / "stage.py"), *arguments]

    @staticmethod
    def rank(*arguments: str) -> list[str]:
        return [*BARE_PYTHON, str(FAKES / "rank.py"), *arguments]

    def start(
        self,
        config: RunConfig,
        *,
        indexes: list[int] | None = None,
        ranks: list[str] | None = None,
        preflight: dict[int, list[str]] | None = None,
        publish: list[str] | None = None,
        timing: dict[str, float] | None = None,
        arguments: list[str] | None = None,
        port: int | None = None,
        stdout: int | None = None,
    ) -> list[Worker]:
        coordinator = f"127.0.0.1:{port or free_port()}"
        config_path = self._folder / f"run-{config.uid}-{config.attempt}.json"
        config.dump(config_path)
        started = []
        for index in indexes if indexes is not None else range(config.workers.replicas):
            programs = {
                "preflight": (preflight or {}).get(index, self.stage()),
                "rank": ranks or self.rank(),
                "publish": publish or self.stage(),
            }
            work = self._folder / f"worker-{len(self.workers)}"
            command = [
                sys.executable,
                str(FAKES / "agent.py"),
                json.dumps(programs),
                json.dumps(timing or {}),
            ]
            command += ["--config", str(config_path), "--work", str(work), "--index", str(index)]
            command += ["--coordinator", coordinator, *(arguments or [])]
            output = work.with_suffix(".out")
            with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
                process = subprocess.Popen(
                    command,
                    stdout=out if stdout is None else stdout,
                    stderr=err,
                    env=os.environ | {"FINETUNE_TERMINATION_LOG": str(work.with_suffix(".termination"))},
                    start_new_session=True,
                )
            worker = Worker(process, work, output)
            started.append(worker)
            self.workers.append(worker)
        return started

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()  # its ranks die with it
            worker.process.wait()


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    starter = Gang(tmp_path)
    yield starter
    starter.close()
