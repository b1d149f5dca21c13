from __future__ import annotations

import pytest

from finetune_trainer.config import ExitReason, Outcome
from finetune_trainer.worker.jury import Jury
from finetune_trainer.worker.messages import Report

SETTLE = 8.0


def told(reason: ExitReason, worker: int = 0, *, secondary: bool = False, message: str = "") -> Report:
    return Report(outcome=Outcome(worker=worker, reason=reason, message=message), secondary=secondary)


OOM = ExitReason.OUT_OF_MEMORY
ECHO = ExitReason.COLLECTIVE_TIMEOUT
DONE = ExitReason.SUCCEEDED
STOPPED = ExitReason.PREEMPTED


@pytest.mark.parametrize(
    ("story", "now", "reason", "worker"),
    [
        pytest.param([(0, told(DONE), 1.0)], 1.0, None, None, id="one of two is done"),
        pytest.param([(0, told(DONE), 1.0), (1, told(DONE, 1), 2.0)], 2.0, DONE, 0, id="both are done"),
        pytest.param([(1, told(OOM, 1), 1.0)], 1.0, OOM, 1, id="a failure is known at once"),
        pytest.param(
            [(1, told(OOM, 1), 1.0), (0, told(ExitReason.GPU_FAULT), 1.1)],
            2.0,
            OOM,
            1,
            id="the first one wins",
        ),
        pytest.param([(0, told(ECHO, secondary=True), 1.0)], 8.9, None, None, id="an echo waits"),
        pytest.param([(0, told(ECHO, secondary=True), 1.0)], 9.0, ECHO, 0, id="an echo alone is the cause"),
        pytest.param(
            [(0, told(ECHO, secondary=True), 1.0), (1, told(OOM, 1), 8.0)],
            8.0,
            OOM,
            1,
            id="the cause comes late",
        ),
        pytest.param([(0, told(DONE), 1.0), (1, "lost", 2.0)], 2.0, ECHO, 1, id="a lost worker"),
        pytest.param(
            [(0, told(ECHO, secondary=True), 1.0), (1, "lost", 2.0)],
            2.0,
            ECHO,
            1,
            id="a loss explains the echo",
        ),
        pytest.param(
            [(1, told(DONE, 1), 1.0), (1, "lost", 2.0), (0, told(DONE), 3.0)],
            3.0,
            DONE,
            0,
            id="left when done",
        ),
        pytest.param(
            [(0, told(DONE), 1.0), (1, told(STOPPED, 1), 2.0)],
            2.0,
            STOPPED,
            1,
            id="stopped counts more than done",
        ),
        pytest.param(
            [(0, "stop", 1.0), (1, told(ECHO, 1, secondary=True), 2.0), (0, told(STOPPED), 3.0)],
            3.0,
            STOPPED,
            0,
            id="a broken connection while stopping",
        ),
        pytest.param(
            [(0, "stop", 1.0), (1, "lost", 2.0), (0, told(STOPPED), 3.0)],
            3.0,
            STOPPED,
            0,
            id="lost while stopping",
        ),
        pytest.param(
            [(0, "stop", 1.0), (1, told(OOM, 1), 2.0)], 2.0, OOM, 1, id="a real failure while stopping"
        ),
        pytest.param(
            [(0, told(STOPPED), 1.0), (0, told(ExitReason.INTERNAL), 1.1), (1, told(STOPPED, 1), 2.0)],
            2.0,
            STOPPED,
            0,
            id="what dies after its report was cleared away",
        ),
    ],
)
def test_verdict(
    story: list[tuple[int, Report | str, float]], now: float, reason: ExitReason | None, worker: int | None
) -> None:
    jury = Jury(2, SETTLE)
    for index, happening, at in story:
        if isinstance(happening, Report):
            jury.report(index, happening, at)
        elif happening == "lost":
            jury.lost(index)
        else:
            jury.stop()
    outcome = jury.decide(now)
    assert (outcome.reason if outcome else None) == reason
    assert (outcome.worker if outcome else None) == worker


def test_a_silent_worker_is_the_likely_cause_of_an_echo() -> None:
    jury = Jury(3, SETTLE)
    jury.report(0, told(ECHO, secondary=True, message="connection closed"), 1.0)
    assert jury.decide(5.0, silent=[2]) is None
    outcome = jury.decide(9.5, silent=[2])
    assert outcome is not None
    assert outcome.message.startswith("worker 2 was lost")
    assert jury.decide(20.0) == outcome, "a verdict does not change"
