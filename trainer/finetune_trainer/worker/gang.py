"""Watches a worker's ranks until the gang's verdict is known."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from finetune_trainer.config import ExitReason, Outcome, RunConfig
from finetune_trainer.worker.channel import Channel
from finetune_trainer.worker.classify import Circumstances, classify
from finetune_trainer.worker.jury import GRACEFUL
from finetune_trainer.worker.memory import oom_kills
from finetune_trainer.worker.messages import Report
from finetune_trainer.worker.process import Ended
from finetune_trainer.worker.ranks import Ranks

_POLL_SECONDS = 1.0
_ABORT_SECONDS = 5.0


class RankWatch:
    """Turns what happens to the ranks into reports, and requests to stop into signals.

    Args:
        ranks: the ranks, started.
        channel: where reports go and requests come from.
        config: the run.
        worker: index of this worker.
        last_step: gives the last optimizer step known.
    """

    def __init__(
        self, ranks: Ranks, channel: Channel, config: RunConfig, worker: int, last_step: Callable[[], int]
    ) -> None:
        self._ranks = ranks
        self._channel = channel
        self._config = config
        self._worker = worker
        self._last_step = last_step
        self._oom_kills = oom_kills()
        self._hung: set[int] = set()

    async def until_verdict(self, grace_seconds: float) -> Outcome:
        """Watch until the verdict.

        Args:
            grace_seconds: how long ranks that were asked to stop may take.
        """
        async with asyncio.TaskGroup() as tasks:
            watchers = [
                tasks.create_task(self._report_ends()),
                tasks.create_task(self._stop_on_request(grace_seconds)),
                tasks.create_task(self._end_the_hung()),
            ]
            # Shielded: were a watcher to fail, the verdict itself must not be cancelled with the wait.
            outcome = await asyncio.shield(self._channel.verdict)
            for watcher in watchers:
                watcher.cancel()
        return outcome

    async def _report_ends(self) -> None:
        """A failure is reported at once; graceful ends when every rank has come to its own."""
        graceful: list[Outcome] = []
        while len(graceful) < self._config.workers.ranks_per_worker:
            rank, ended = await self._ranks.ended.get()
            report = classify(ended, self._circumstances(rank))
            if report.outcome.reason in GRACEFUL:
                graceful.append(report.outcome)
            else:
                self._channel.report(report)
        telling = (each for each in graceful if each.reason is not ExitReason.SUCCEEDED)
        self._channel.report(Report(outcome=next(telling, graceful[0])))

    async def _stop_on_request(self, grace_seconds: float) -> None:
        await self._channel.stop_requested.wait()
        self._ranks.signal(signal.SIGTERM)
        await asyncio.sleep(grace_seconds)
        outcome = Outcome(
            worker=self._worker,
            reason=ExitReason.PREEMPTED,
            message=f"stopped after {grace_seconds:.0f} s without reaching the end of a step",
            step=self._last_step(),
        )
        self._channel.report(Report(outcome=outcome))
        self._ranks.kill()

    async def _end_the_hung(self) -> None:
        loop = asyncio.get_running_loop()
        while not (stalled := self._ranks.stalled(loop.time())):  # noqa: ASYNC110 - files are polled
            await asyncio.sleep(_POLL_SECONDS)
        self._hung.update(stalled)
        for rank in stalled:
            self._ranks.abort(rank)
        # Their ends are then reported with their stacks; only a process that is stopped or stuck in the
        # kernel does not end, and is named without.
        await asyncio.sleep(_ABORT_SECONDS)
        for rank in stalled:
            if self._ranks.running(rank):
                self._channel.report(classify(Ended(-signal.SIGABRT, None, []), self._circumstances(rank)))

    def _circumstances(self, rank: int) -> Circumstances:
        return Circumstances(
            f"rank {rank}",
            self._worker,
            rank,
            step=self._last_step(),
            oom_killed=oom_kills() > self._oom_kills,
            stopping=self._channel.stop_requested.is_set(),
            hung_seconds=self._config.retry.hang_seconds if rank in self._hung else None,
        )
