"""An exception that ended a rank, as an outcome."""

from __future__ import annotations

import traceback

import torch

from finetune_trainer.config import ExitReason, Outcome, RunError

TRACEBACK_LINES = 12


def outcome(error: BaseException, *, rank: int, step: int) -> Outcome:
    """Why this rank ends. What is not recognised here is `Internal`, with its traceback's last lines.

    Args:
        error: what was raised.
        rank: global rank.
        step: optimizer steps taken.
    """
    reason, message, hint = _describe(error)
    lines = "".join(traceback.format_exception(error)).splitlines()
    expected = reason in {ExitReason.PREEMPTED, ExitReason.PAUSED}
    return Outcome(
        reason=reason,
        message=message,
        hint=hint,
        step=step,
        rank=rank,
        traceback=[] if expected else lines[-TRACEBACK_LINES:],
    )


def _describe(error: BaseException) -> tuple[ExitReason, str, str]:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, RunError):
        return error.reason, error.message, error.hint
    if isinstance(error, torch.OutOfMemoryError):
        return ExitReason.OUT_OF_MEMORY, f"the GPU's memory is full: {text[:300]}", _LESS_MEMORY
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return ExitReason.OUT_OF_MEMORY, f"the machine's memory is full: {text[:300]}", _LESS_MEMORY
    if isinstance(error, torch.distributed.DistError) or "Gloo" in text or "gloo" in text:
        return (
            ExitReason.COLLECTIVE_TIMEOUT,
            f"a collective did not finish: {text[:300]}",
            "another rank has stopped or hangs; its own outcome says why",
        )
    if "loss scale already at minimum" in text:
        # What DeepSpeed raises, without a type of its own, after overflow upon overflow.
        return (
            ExitReason.NON_FINITE_LOSS,
            "the gradient overflows in FP16 at every loss scale",
            "use precision BF16 or FP32, lower training.learningRate, or look at the data",
        )
    return ExitReason.INTERNAL, f"{type(error).__name__}: {text[:500]}", ""


_LESS_MEMORY = (
    "lower training.microBatchSize or dataset.maxLength, set gradientCheckpointing: true, "
    "use QLoRA, or a higher deepspeed.stage"
)
