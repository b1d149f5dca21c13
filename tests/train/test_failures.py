"""Exceptions as outcomes."""

import pytest
import torch

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.train.failures import TRACEBACK_LINES, outcome


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (
            RunError(ExitReason.MODEL_UNAVAILABLE, "no such model", "look again"),
            "ModelUnavailable",
            "no such model",
        ),
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2 GiB"), "OutOfMemory", "2 GiB"),
        (MemoryError(), "OutOfMemory", "memory is full"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "OutOfMemory",
            "memory is full",
        ),
        (
            RuntimeError("[../gloo/tcp/pair.cc] Connection closed by peer"),
            "CollectiveTimeout",
            "peer",
        ),
        (
            Exception("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
            "NonFiniteLoss",
            "FP16",
        ),
        (KeyError("x"), "Internal", "KeyError: 'x'"),
        (ValueError("two\nlines"), "Internal", "ValueError: two lines"),
    ],
)
def test_reason_and_message(error: BaseException, reason: str, says: str) -> None:
    said = outcome(error, rank=3, step=7)
    assert said.reason == reason
    assert says in said.message
    assert "\n" not in said.message
    assert (said.rank, said.step) == (3, 7)


def test_the_traceback_is_short_and_only_where_something_went_wrong() -> None:
    def fail(depth: int) -> None:
        if depth:
            fail(depth - 1)
        raise ValueError("deep")

    with pytest.raises(ValueError, match="deep") as caught:
        fail(30)
    assert len(outcome(caught.value, rank=0, step=0).traceback) == TRACEBACK_LINES
    assert outcome(RunError(ExitReason.PREEMPTED, "stopped"), rank=0, step=1).traceback == []
