"""The learning rate of each optimizer step."""

from __future__ import annotations

import math

from finetune_trainer.config import Training


def warmup_steps(training: Training, total_steps: int) -> int:
    """Optimizer steps before the full rate is reached."""
    return math.ceil(training.warmup_ratio * total_steps)


def learning_rate(training: Training, step: int, total_steps: int) -> float:
    """The rate of optimizer step `step`, counted from 0.

    Linear warm-up over `warmup_ratio` of the run, rounded up; the first step has a rate above 0
    and the first step after the warm-up the full one. Then constant, linear to 0, or half a cosine
    to 0 (Loshchilov and Hutter, "SGDR", 2017, eq. 5, without restarts).
    """
    warmup = warmup_steps(training, total_steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, total_steps - warmup)
    match training.scheduler:
        case "Constant":
            factor = 1.0
        case "Linear":
            factor = 1.0 - progress
        case "Cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return training.learning_rate * factor
