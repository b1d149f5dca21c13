"""The life of a worker: preflight, roll call, ranks, verdict, publication."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_trainer.config import Event, ExitReason, Outcome, RunConfig, Stage
from finetune_trainer.processors import available_cores
from finetune_trainer.worker.channel import Channel, Endpoint, Timing
from finetune_trainer.worker.classify import Circumstances, classify
from finetune_trainer.worker.coordinator import Coordinator
from finetune_trainer.worker.environment import stage_environment
from finetune_trainer.worker.gang import RankWatch
from finetune_trainer.worker.member import Member
from finetune_trainer.worker.messages import Report
from finetune_trainer.worker.process import StageProcess
from finetune_trainer.worker.programs import Programs
from finetune_trainer.worker.progress import Progress
from finetune_trainer.worker.ranks import Ranks

_FAILURE_GRACE_SECONDS = 2.0
"""After a failure there is nothing left to save: ranks get this long to abort their uploads."""


@dataclass(frozen=True)
class Assignment:
    """What an agent is told by whoever starts it."""

    config_path: Path
    config: RunConfig
    index: int
    work: Path
    endpoint: Endpoint
    """Where worker 0 listens; unused with one worker."""
    grace_seconds: float = 300.0
    """How long ranks that were asked to stop may take to reach a checkpoint."""


class Agent:
    """Carries one worker through one attempt.

    Args:
        assignment: what to do.
        emit: called with every event, the worker's index filled in.
        progress: gives the last known state.
        programs: the command lines of preflight, rank and publication.
        timing: seconds that govern the control channel.
    """

    def __init__(
        self,
        assignment: Assignment,
        emit: Callable[[Event], None],
        progress: Callable[[], Progress],
        programs: Programs,
        timing: Timing,
    ) -> None:
        self._task = assignment
        self._config = assignment.config
        self._emit = emit
        self._progress = progress
        self._programs = programs
        self._timing = timing

    async def run(self) -> Outcome:
        """Live until the outcome is known and every process of this worker is gone.

        Raises:
            RunError: the control channel cannot be opened.
        """
        channel = self._open_channel()
        self._heed_signals(channel)
        serving = asyncio.create_task(channel.run())
        living = asyncio.create_task(self._live(channel))
        await _first(serving, living)
        if serving.done() and not serving.cancelled() and serving.exception() is not None:
            living.cancel()
            await asyncio.wait({living})
            await serving
        try:
            return await living
        finally:
            serving.cancel()
            await asyncio.wait({serving})

    def _open_channel(self) -> Channel:
        if self._task.index == 0:
            return Coordinator(self._config, self._task.endpoint, self._timing)
        return Member(self._config, self._task.index, self._task.endpoint, self._timing)

    def _heed_signals(self, channel: Channel) -> None:
        """The first SIGTERM or SIGINT asks for a checkpoint, the second one ends the run at once."""

        def heed() -> None:
            if channel.stop_requested.is_set():
                channel.give_up(self._preempted("stopped at once, without a checkpoint"))
            else:
                channel.request_stop()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, heed)

    async def _live(self, channel: Channel) -> Outcome:
        failure = await self._preflight(channel)
        if failure is not None and not channel.verdict.done():
            channel.report(failure)
            await channel.linger()
            return channel.verdict.result() if channel.verdict.done() else failure.outcome
        self._emit(Stage(name="rendezvous"))
        await _first(channel.started, channel.verdict)
        if channel.verdict.done():
            return channel.verdict.result()
        outcome = await self._train(channel)
        if outcome.reason is ExitReason.SUCCEEDED and self._task.index == 0:
            outcome = await self._publish(channel)
        return outcome

    async def _preflight(self, channel: Channel) -> Report | None:
        """The failure of this worker's preflight, if it has one."""
        self._emit(Stage(name="preflight"))
        report = await self._run_stage("preflight", self._programs.preflight, channel.verdict)
        return None if report.outcome.reason is ExitReason.SUCCEEDED else report

    async def _train(self, channel: Channel) -> Outcome:
        """Run the ranks until the gang's verdict; every rank is gone when this returns."""
        task = self._task
        ranks = Ranks(self._config, task.index, task.work, self._command(self._programs.rank), self._emit)
        try:
            await ranks.start(channel.started.result())
            watch = RankWatch(ranks, channel, self._config, task.index, lambda: self._progress().last_step)
            return await watch.until_verdict(task.grace_seconds)
        except OSError as error:
            channel.report(self._cannot_start("its ranks", error))
            return await channel.verdict
        finally:
            await ranks.stop(_FAILURE_GRACE_SECONDS)

    async def _publish(self, channel: Channel) -> Outcome:
        """Verify and publish what the gang trained. It may be cut short: the next attempt repeats it."""
        stopping = asyncio.ensure_future(channel.stop_requested.wait())
        try:
            return (await self._run_stage("publish", self._programs.publish, stopping)).outcome
        finally:
            stopping.cancel()

    async def _run_stage(self, name: str, command: list[str], interrupted: asyncio.Future[Any]) -> Report:
        """Run a program of one process to its end, or until `interrupted` resolves."""
        task = self._task
        try:
            (task.work / "logs").mkdir(parents=True, exist_ok=True)
            process = await StageProcess.start(
                self._command(command),
                name=name,
                log=task.work / "logs" / f"{name}.log",
                environment=stage_environment(os.environ, self._config, processes=1, cores=available_cores()),
                on_event=self._emit,
                events_on_stdout=True,
            )
        except OSError as error:
            return self._cannot_start(name, error)
        try:
            ending = asyncio.create_task(process.ended())
            await _first(ending, interrupted)
            stopping = not ending.done()
            if stopping:
                await process.stop(_FAILURE_GRACE_SECONDS)
            at = Circumstances(name, task.index, step=self._progress().last_step, stopping=stopping)
            return classify(await ending, at)
        finally:
            process.kill()

    def _command(self, program: list[str]) -> list[str]:
        return [*program, "--config", str(self._task.config_path), "--work", str(self._task.work)]

    def _cannot_start(self, what: str, error: OSError) -> Report:
        return Report(
            outcome=Outcome(
                worker=self._task.index,
                reason=ExitReason.PREFLIGHT_FAILED,
                message=f"worker {self._task.index} cannot start {what}: {error}",
                hint="look at the free space and the permissions of the work folder",
            )
        )

    def _preempted(self, message: str) -> Outcome:
        return Outcome(
            worker=self._task.index,
            reason=ExitReason.PREEMPTED,
            message=message,
            step=self._progress().last_step,
        )


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
