"""What the peers' runs share: their settings, and a meter around a transformers Trainer."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback


@dataclass(frozen=True)
class Settings:
    """What every contender is given."""

    model: str
    folder: str
    """For files that the run leaves."""
    layout: str
    """`packed` or `padded`."""
    bf16: bool
    global_batch: int
    """Rows an optimizer step, where rows are padded."""
    row_tokens: int
    """Tokens of a packed row, an optimizer step each."""
    learning_rate: float
    seed: int


def settings(text: str) -> Settings:
    """Read settings from JSON."""
    return Settings(**json.loads(text))


class Meter(TrainerCallback):
    """Counts the tokens that are no padding, and the seconds, of all steps but the first."""

    def __init__(self) -> None:
        self._tokens = self._computed = 0
        self._seconds = 0.0
        self._start = 0.0
        self._steps = 0
        self._losses: list[float] = []

    def around(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """A Trainer's `training_step` that also counts what it trains on."""

        def counting(trainer: Any, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
            if self._steps:
                self._tokens += _real(inputs)
                self._computed += inputs["input_ids"].numel()
            return training_step(trainer, model, inputs, *rest, **named)

        return counting

    def on_log(self, *_: Any, **given: Any) -> None:
        """Keep the loss."""
        if "loss" in given["logs"]:
            self._losses.append(given["logs"]["loss"])

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop it."""
        if self._steps:
            self._seconds += time.perf_counter() - self._start
        self._steps += 1

    def line(self) -> str:
        """The result as JSON."""
        return json.dumps(
            {
                "padding": 1 - self._tokens / self._computed,
                "tokens_per_second": self._tokens / self._seconds,
                # Linux counts in KiB (getrusage(2)).
                "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "losses": self._losses,
            }
        )


def _real(inputs: dict[str, Any]) -> int:
    """Tokens of a batch that are no padding."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return int(inputs["input_ids"].numel())
    if mask.dim() == 4:
        # Real tokens see themselves: nothing is subtracted from their score.
        return int((mask.diagonal(dim1=-2, dim2=-1) == 0).sum())
    return int(mask.sum())
