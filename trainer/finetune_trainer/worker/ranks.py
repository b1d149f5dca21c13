"""The rank processes of one worker, as one thing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from finetune_trainer.config import Event, RunConfig
from finetune_trainer.processors import available_cores
from finetune_trainer.worker.environment import rank_environment
from finetune_trainer.worker.hang import HangWatch
from finetune_trainer.worker.messages import Start
from finetune_trainer.worker.process import Ended, StageProcess


class Ranks:
    """Starts and ends the ranks of a worker and hands on what they say.

    Args:
        config: the run.
        worker: index of the worker.
        work: its folder: logs go to `logs/rank-N.log`, ranks touch `heartbeat-N` every step.
        command: the rank's command line.
        on_event: called with every event of every rank but their outcomes.

    Attributes:
        ended: pairs of rank number and its end, in the order in which they happen.
    """

    def __init__(
        self,
        config: RunConfig,
        worker: int,
        work: Path,
        command: list[str],
        on_event: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._worker = worker
        self._work = work
        self._command = command
        self._on_event = on_event
        self._processes: dict[int, StageProcess] = {}
        self._followers: list[asyncio.Task[None]] = []
        self._events = 0
        self._watch = HangWatch(config.retry.hang_seconds)
        self.ended: asyncio.Queue[tuple[int, Ended]] = asyncio.Queue()

    async def start(self, start: Start) -> None:
        """Start every rank.

        Raises:
            OSError: a log cannot be written, or a process not be started.
        """
        logs = self._work / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        size = self._config.workers.ranks_per_worker
        cores = available_cores()
        for local_rank in range(size):
            rank = self._worker * size + local_rank
            self._heartbeat(rank).unlink(missing_ok=True)
            process = await StageProcess.start(
                self._command,
                name=f"rank {rank}",
                log=logs / f"rank-{rank}.log",
                environment=rank_environment(
                    os.environ,
                    self._config,
                    worker=self._worker,
                    local_rank=local_rank,
                    start=start,
                    cores=cores,
                ),
                on_event=self._heard,
            )
            self._processes[rank] = process
            self._followers.append(asyncio.create_task(self._follow(rank, process)))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that still runs."""
        for process in self._processes.values():
            process.signal(number)

    def kill(self) -> None:
        """Kill every rank with its helpers, now."""
        for process in self._processes.values():
            process.kill()

    def abort(self, rank: int) -> None:
        """End a rank in the way that leaves the stacks of its threads in its log."""
        self._processes[rank].signal(signal.SIGABRT)

    def running(self, rank: int) -> bool:
        """Whether a rank has not ended yet."""
        return self._processes[rank].running

    def stalled(self, now: float) -> list[int]:
        """The ranks that have not made progress for longer than `retry.hang_seconds`.

        Args:
            now: seconds of a steady clock.
        """
        for rank, process in self._processes.items():
            if not process.running:
                self._watch.ended(rank)
                continue
            try:
                beat = self._heartbeat(rank).stat().st_mtime_ns
            except FileNotFoundError:  # no step yet
                continue
            self._watch.sign(rank, (beat, self._events), now)
        return self._watch.stalled(now)

    async def stop(self, grace_seconds: float) -> None:
        """End every rank and leave nothing behind: SIGTERM, then SIGKILL after the grace."""
        await asyncio.gather(*(process.stop(grace_seconds) for process in self._processes.values()))
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    def _heard(self, event: Event) -> None:
        self._events += 1
        self._on_event(event)

    def _heartbeat(self, rank: int) -> Path:
        return self._work / f"heartbeat-{rank}"

    async def _follow(self, rank: int, process: StageProcess) -> None:
        self.ended.put_nowait((rank, await process.ended()))
