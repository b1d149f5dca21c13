"""Finds the one outcome of a gang of workers: pure, the clock comes in as numbers."""

from __future__ import annotations

from collections.abc import Collection

from finetune_trainer.config import ExitReason, Outcome
from finetune_trainer.worker.messages import Report

GRACEFUL = (ExitReason.SUCCEEDED, ExitReason.PREEMPTED, ExitReason.PAUSED)
"""A worker whose ranks ended so has done its part; the others are awaited."""


class Jury:
    """Weighs the workers' reports in the order in which they arrive.

    The first failure with a cause of its own wins. A secondary failure, such as a
    connection closed by a peer that died, waits `settle_seconds` for a better one.

    Args:
        replicas: number of workers.
        settle_seconds: how long a secondary failure waits for its cause to be known.
    """

    def __init__(self, replicas: int, settle_seconds: float) -> None:
        self._replicas = replicas
        self._settle_seconds = settle_seconds
        self._stopping = False
        self._cause: Outcome | None = None
        self._suspect: Outcome | None = None
        self._suspect_since = 0.0
        self._finished: dict[int, Outcome] = {}

    def stop(self) -> None:
        """The run was asked to stop: from now on a lost or broken peer is a part of stopping."""
        self._stopping = True

    def report(self, worker: int, report: Report, now: float) -> None:
        """Take in what a worker says about its ranks. `now` in seconds of any steady clock."""
        if worker in self._finished:  # what dies after that was being cleared away
            return
        if report.outcome.reason in GRACEFUL:
            self._finished[worker] = report.outcome
        elif report.secondary and self._stopping:
            self._finished[worker] = _cut_off(worker)
        elif not report.secondary:
            self._cause = self._cause or report.outcome
        elif self._suspect is None:
            self._suspect, self._suspect_since = report.outcome, now

    def lost(self, worker: int) -> None:
        """The connection to a worker is gone, or it is silent for too long."""
        if worker in self._finished:
            return
        if self._stopping:
            self._finished[worker] = _cut_off(worker)
        else:
            self._cause = self._cause or lost_worker(worker)

    def decide(self, now: float, silent: Collection[int] = ()) -> Outcome | None:
        """The outcome of the gang, or None while it is still open.

        Args:
            now: seconds of the same clock as in `report`.
            silent: workers that have missed heartbeats without being lost yet: when nothing
                but a secondary failure is known in the end, they are its likely cause.
        """
        if self._cause is None and self._suspect and now - self._suspect_since >= self._settle_seconds:
            missing = sorted(set(silent) - self._finished.keys())
            self._cause = lost_worker(missing[0]) if missing else self._suspect
        if self._cause is not None:
            return self._cause
        if len(self._finished) < self._replicas:
            return None
        outcomes = [self._finished[worker] for worker in sorted(self._finished)]
        return next((each for each in outcomes if each.reason is not ExitReason.SUCCEEDED), outcomes[0])


def lost_worker(worker: int) -> Outcome:
    """The outcome that names a worker which vanished without a word."""
    return Outcome(
        worker=worker,
        reason=ExitReason.COLLECTIVE_TIMEOUT,
        message=f"worker {worker} was lost: its agent vanished without giving a reason",
        hint="look at the node and the pod of that worker: it was probably killed, evicted or cut off",
    )


def _cut_off(worker: int) -> Outcome:
    return Outcome(
        worker=worker,
        reason=ExitReason.PREEMPTED,
        message=f"worker {worker} was cut off while the run was stopping",
    )
