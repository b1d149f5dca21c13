"""Conducts the processes of one attempt: prepare, then the agents of all workers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from finetune_operator.cli.run.display import Display
from finetune_operator.cli.run.processes import Child, Programs
from finetune_operator.cli.run.summary import is_stop
from finetune_trainer.config import Event, ExitReason, Outcome, RunConfig

STOPPING = "stopping: checkpoint at the next step (once more: stop at once)"
_KILL_SECONDS = 10.0
_AFTERMATH_SECONDS = 15.0
"""How long agents may take to end by themselves after one of them failed."""


class Killed(Exception):  # noqa: N818 - it is no error
    """The user asked a second time: everything was killed."""


class Conductor:
    """Runs one attempt of a job on this machine.

    Args:
        config: the run.
        config_path: the same as a file.
        folder: the attempt's own folder.
        environment: what the processes find in their environment.
        programs: the processes' command lines.
        display: where requests to stop are acknowledged.
        on_event: called with every event but the outcomes.
    """

    def __init__(
        self,
        config: RunConfig,
        config_path: Path,
        folder: Path,
        environment: Mapping[str, str],
        programs: Programs,
        display: Display,
        on_event: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._config_path = config_path
        self._folder = folder
        self._environment = environment
        self._programs = programs
        self._display = display
        self._on_event = on_event
        self._children: list[Child] = []
        self._stopping = False
        self._unheard = False
        self._killed = asyncio.Event()

    async def run(self) -> Outcome:
        """Carry the attempt out; returns its outcome: that of prepare if it failed, else the gang's.

        Raises:
            Killed: a second signal came; no process of ours is left.
            OSError: a process cannot be started.
        """
        self._heed_signals()
        working = asyncio.create_task(self._work())
        killed = asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait({working, killed}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Killed
            return working.result()
        finally:
            for child in self._children:
                child.signal(signal.SIGKILL)  # its own children die with it
            killed.cancel()
            await asyncio.wait({working, killed}, timeout=_KILL_SECONDS)
            working.cancel()

    def _heed_signals(self) -> None:
        def heed() -> None:
            if self._stopping:
                self._killed.set()
            else:
                self._tell(lambda: self._display.note(STOPPING))
                self._ask_to_stop()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
                asyncio.get_running_loop().add_signal_handler(number, heed)

    def _hear(self, event: Event) -> None:
        self._tell(lambda: self._on_event(event))

    def _tell(self, say: Callable[[], None]) -> None:
        """Say something; once nobody can hear us, because the terminal or the pipe is gone, stop the run."""
        if self._unheard:
            return
        try:
            say()
        except OSError:
            self._unheard = True
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._stopping = True
        for child in self._children:
            child.signal(signal.SIGTERM)

    async def _work(self) -> Outcome:
        outcome = await self._prepare()
        if self._stopping and outcome.reason is not ExitReason.SUCCEEDED:
            return Outcome(reason=ExitReason.PREEMPTED)
        if outcome.reason is not ExitReason.SUCCEEDED:
            return outcome
        return await self._train()

    async def _prepare(self) -> Outcome:
        child = await self._start("prepare", [*self._programs.prepare, *self._arguments("prepare")])
        return await child.events(self._hear)

    async def _train(self) -> Outcome:
        """Run all agents; the root cause is what the first one to fail says of its own accord."""
        outcomes: dict[int, Outcome] = {}
        cause: Outcome | None = None
        port = _free_port()
        tasks: dict[asyncio.Task[Outcome], int] = {}
        for index in range(self._config.workers.replicas):
            child = await self._start(f"worker-{index}", self._agent(index, port))
            tasks[asyncio.create_task(child.events(self._hear))] = index
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while pending := [task for task, index in tasks.items() if index not in outcomes]:
            timeout = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.__getitem__):
                outcome = outcomes[tasks[task]] = task.result()
                failed = outcome.reason is not ExitReason.SUCCEEDED and not is_stop(outcome)
                if failed and cause is None:
                    cause = outcome
                    deadline = loop.time() + _AFTERMATH_SECONDS
            if not done:
                # These never heard of the failure: the failed agent had not joined them yet.
                for child in self._children:
                    child.signal(signal.SIGTERM)
                deadline = None
        return cause or outcomes[0]

    def _agent(self, index: int, port: int) -> list[str]:
        arguments = self._arguments(f"worker-{index}")
        return [
            *self._programs.agent,
            *arguments,
            "--index",
            str(index),
            "--coordinator",
            f"127.0.0.1:{port}",
        ]

    def _arguments(self, name: str) -> list[str]:
        return ["--config", str(self._config_path), "--work", str(self._folder / name)]

    async def _start(self, name: str, command: list[str]) -> Child:
        (self._folder / name).mkdir()
        environment = dict(os.environ) | worker_environment(self._config, name) | dict(self._environment)
        environment["FINETUNE_TERMINATION_LOG"] = str(self._folder / name / "termination.json")
        child = await Child.start(
            command, name, self._folder / name / f"{name.split('-')[0]}.log", environment
        )
        self._children.append(child)
        if self._stopping:  # the request came while it was being started
            child.signal(signal.SIGTERM)
        return child


def worker_environment(config: RunConfig, stage: str) -> dict[str, str]:
    """What workers that share this machine must not share: processor cores and GPUs.

    Args:
        config: the run.
        stage: `worker-<index>`, or another one that has the machine to itself.
    """
    workers = config.workers
    kind, _, index = stage.partition("-")
    if kind != "worker" or workers.replicas == 1:
        return {}
    if workers.gpus_per_worker == 0:
        threads = max(1, len(os.sched_getaffinity(0)) // workers.replicas)
        return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    # ROCm builds of torch read either name, and both names together hide every GPU: the one that the person
    # has set already, and then a share of those GPUs.
    name = "HIP_VISIBLE_DEVICES" if os.environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    chosen = [gpu.strip() for gpu in os.environ.get(name, "").split(",") if gpu.strip()]
    chosen = chosen or [str(gpu) for gpu in range(workers.replicas * workers.gpus_per_worker)]
    first = int(index) * workers.gpus_per_worker
    return {name: ",".join(chosen[first : first + workers.gpus_per_worker])}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
