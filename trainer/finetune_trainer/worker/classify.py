"""From the way a rank ended to the report that its agent makes of it: pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from finetune_trainer.config import ExitReason, Outcome
from finetune_trainer.worker.jury import GRACEFUL
from finetune_trainer.worker.messages import Report
from finetune_trainer.worker.process import Ended
from finetune_trainer.worker.symptoms import find
from finetune_trainer.worker.termination import shorten

_TRACEBACK_LINES = 30
_DUMP_START = "(most recent call first):"
_INNERMOST_FRAMES = 4
_COLLECTIVE = re.compile(r"distributed_c10d\.py|deepspeed/comm/")
_TRACEBACK_START = "Traceback (most recent call last)"
_DUMP_NOISE = "Extension modules:"


@dataclass(frozen=True)
class Circumstances:
    """What the agent knows about an end besides the process itself."""

    name: str
    """What messages call the process, such as "rank 3"."""
    worker: int
    rank: int | None = None
    step: int = 0
    """Last step known."""
    oom_killed: bool = False
    """The kernel killed a process of this worker for lack of memory."""
    stopping: bool = False
    """The process had been asked to stop."""
    hung_seconds: float | None = None
    """The agent ended it itself, because it made no progress for so long."""


def classify(ended: Ended, at: Circumstances) -> Report:
    """Say why a process ended.

    What it said itself counts most, and counts even if it crashed while leaving. Otherwise
    its exit status, the last lines of its log and the circumstances are read, in this order.
    """
    who = f"{at.name} (worker {at.worker})"
    traceback = traceback_of(ended.tail)
    if at.hung_seconds is not None:
        after = f" after step {at.step}" if at.step else ""
        return _failure(
            ExitReason.COLLECTIVE_TIMEOUT,
            f"{who} made no progress for {at.hung_seconds:.0f} s{after}",
            "its traceback shows where it stood still; retry.hangSeconds is the bound"
            if traceback
            else "it left no stack behind: it is stopped, or stuck in a driver",
            at,
            traceback,
            secondary=waits_for_others(traceback),
        )
    if ended.outcome is not None:
        return _own_words(ended.outcome, at, traceback)
    code = ended.returncode
    if code == 0:
        return Report(outcome=Outcome(worker=at.worker, reason=ExitReason.SUCCEEDED, step=at.step))
    if at.stopping and code in (-signal.SIGTERM, -signal.SIGINT):
        return Report(
            outcome=Outcome(
                worker=at.worker,
                reason=ExitReason.PREEMPTED,
                message="stopped before a step was done",
                step=at.step,
            )
        )
    if code == -signal.SIGKILL and at.oom_killed:
        return _failure(
            ExitReason.OUT_OF_MEMORY,
            f"{who} was killed by the kernel: the worker's memory is used up",
            "raise workers.resources, or lower training.microBatchSize",
            at,
            traceback,
        )
    reason = ExitReason.from_exit_code(code)
    found = find(ended.tail)
    if found is not None and reason is ExitReason.INTERNAL:
        symptom, line = found
        return _failure(
            symptom.reason, f"{who}: {line.strip()}", symptom.hint, at, traceback, secondary=symptom.secondary
        )
    if code < 0:
        return _failure(ExitReason.INTERNAL, f"{who} was killed by {_signal_name(-code)}", "", at, traceback)
    last = ended.tail[-1].strip() if ended.tail else "it said nothing"
    return _failure(reason, f"{who} ended with exit code {code}: {last}", "", at, traceback)


def _own_words(outcome: Outcome, at: Circumstances, traceback: list[str]) -> Report:
    said = outcome.model_copy(
        update={
            "worker": at.worker,
            "rank": at.rank if outcome.rank is None else outcome.rank,
            "step": outcome.step or at.step,
        }
    )
    if outcome.reason in GRACEFUL:
        return Report(outcome=said)
    lines = outcome.traceback or traceback
    secondary = outcome.reason is ExitReason.COLLECTIVE_TIMEOUT
    found = find([outcome.message, *lines])
    if outcome.reason is ExitReason.INTERNAL and found is not None:  # the process had no better word for it
        symptom, _ = found
        secondary = symptom.secondary
        said = said.model_copy(update={"reason": symptom.reason, "hint": outcome.hint or symptom.hint})
    return Report(outcome=shorten(said.model_copy(update={"traceback": lines})), secondary=secondary)


def _failure(
    reason: ExitReason,
    message: str,
    hint: str,
    at: Circumstances,
    traceback: list[str],
    *,
    secondary: bool = False,
) -> Report:
    outcome = Outcome(
        worker=at.worker,
        reason=reason,
        message=message,
        hint=hint,
        step=at.step,
        rank=at.rank,
        traceback=traceback,
    )
    return Report(outcome=shorten(outcome), secondary=secondary)


def traceback_of(lines: list[str]) -> list[str]:
    """The last traceback in a log, or just its last lines where there is none.

    In an exception's traceback the last lines say most. In the stacks that an aborted process
    leaves, it is the first lines of the last one: the main thread's innermost frames.
    """
    lines = [line for line in lines if not line.startswith(_DUMP_NOISE)]
    raised = _last(lines, _TRACEBACK_START)
    dumped = _last(lines, _DUMP_START)
    if dumped > raised:
        return lines[dumped:][:_TRACEBACK_LINES]
    return lines[max(raised, 0) :][-_TRACEBACK_LINES:]


def _last(lines: list[str], text: str) -> int:
    """Index of the last line that holds the text, or -1."""
    return max((number for number, line in enumerate(lines) if text in line), default=-1)


def waits_for_others(traceback: list[str]) -> bool:
    """Whether a dumped stack stands in a collective: then it is another rank that does not come."""
    dumped = _last(traceback, _DUMP_START)
    innermost = traceback[dumped + 1 :][:_INNERMOST_FRAMES] if dumped >= 0 else []
    return any(_COLLECTIVE.search(line) for line in innermost)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
