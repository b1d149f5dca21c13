"""The training loop: steps, lines, evaluations, checkpoints, and leaving in good order."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass

import numpy as np
import torch

from finetune_trainer.config import Evaluation, ExitReason, RunConfig, RunError, Stage, Step, Warned
from finetune_trainer.train.batches import Schedule
from finetune_trainer.train.checkpoint import Checkpoints, Progress
from finetune_trainer.train.diagnosis import Known, not_finite
from finetune_trainer.train.emit import Emitter
from finetune_trainer.train.engine import Engine
from finetune_trainer.train.learning_rate import learning_rate
from finetune_trainer.train.signals import StopRequest
from finetune_trainer.train.step import Split, Stepper
from finetune_trainer.train.watchdog import Watchdog
from finetune_trainer.train.world import World


@dataclass(frozen=True)
class Splits:
    """The prepared data."""

    train: Split
    validation: Split
    test: Split


@dataclass
class Loop:
    """Everything a run of optimizer steps needs."""

    run: RunConfig
    world: World
    engine: Engine
    stepper: Stepper
    splits: Splits
    schedule: Schedule
    known: Known
    checkpoints: Checkpoints
    stop: StopRequest
    emit: Emitter

    def train(self, progress: Progress) -> None:
        """Take the steps that are left, from `progress` on, and keep it up to date.

        Raises:
            RunError: Preempted after a stop was asked for and a checkpoint taken; NonFiniteLoss.
        """
        window = Window(progress)
        progress.watch = progress.watch.at(progress.step)
        watchdog = Watchdog(self.known, progress.watch)
        for step in range(progress.step, self.schedule.total_steps):
            begun = time.monotonic()
            rate, norm, stopping = self._step(step, progress, watchdog)
            progress.step = step + 1
            progress.seconds += time.monotonic() - begun
            last = progress.step == self.schedule.total_steps
            if progress.step % self.run.training.log_steps == 0 or last:
                self._line(progress, window, rate, norm)
            # Before an evaluation: whoever asked to stop may not wait for a whole split.
            if stopping and not last:
                self.checkpoints.save(self.engine, progress)
                raise RunError(
                    ExitReason.PREEMPTED,
                    f"stopped after step {progress.step} of {self.schedule.total_steps}, with a checkpoint",
                    "run the same job again to continue from there",
                )
            if progress.step % self.run.training.evaluation_steps == 0 and not last:
                self.evaluate(progress, "validation")
            # After the last one too: what follows, up to the upload, can fail and is then repeated alone.
            if progress.step % self.run.checkpoint.steps == 0 or last:
                self.checkpoints.save(self.engine, progress)

    def evaluate(self, progress: Progress, name: str) -> float | None:
        """Loss over the split `name`, reported and logged; None where the split is empty. A collective."""
        split: Split = getattr(self.splits, name)
        if len(split) == 0:
            return None
        if self.world.leader:
            self.emit(Stage(name="evaluate", message=f"{len(split)} {name} examples"))
        loss, tokens = self.stepper.evaluate(split)
        event = Evaluation.model_validate(
            {"split": name, "step": progress.step, "loss": loss, "tokens": tokens}
        )
        progress.log.append(event.model_dump(mode="json", exclude={"worker"}))
        if self.world.leader:
            self.emit(event)
        return loss

    def _step(self, step: int, progress: Progress, watchdog: Watchdog) -> tuple[float, float, bool]:
        """One optimizer step; its learning rate, gradient norm and whether a stop was asked for."""
        train = self.splits.train
        batch = self.schedule.batch(step)
        # Seeded by step, not carried along: dropout after a resume is what it would have been.
        torch.manual_seed(_seed(self.run.training.seed, step, self.world.rank))
        loss = self.stepper.accumulate(train, batch)
        total, stops = self.world.sum([loss, float(self.stop.requested)])
        if not math.isfinite(total):
            spoilt = [example for some in self.world.gather(self.stepper.spoilt) for example in some]
            raise self._not_finite("the loss", total, step, spoilt or batch, watchdog, narrowed=bool(spoilt))
        rate = learning_rate(self.run.training, step, self.schedule.total_steps)
        norm = self.engine.step(rate)
        skipped = self.engine.skipped
        if not skipped and not math.isfinite(norm):
            raise self._not_finite("the gradient's norm", norm, step, batch, watchdog, narrowed=False)
        trained = int(train.trained_counts[batch].sum())
        progress.tokens += int(train.lengths[batch].sum())
        progress.window_loss += total
        progress.window_tokens += trained
        moved = not watchdog.asks_the_adapter or self.engine.moved
        for warning in watchdog.look(
            total / trained if trained else None,
            None if skipped else norm,
            train.rows[batch].tolist(),
            moved=moved,
        ):
            self._warn(progress, warning)
        return rate, norm, stops > 0

    def _not_finite(
        self, what: str, value: float, step: int, examples: list[int], watchdog: Watchdog, *, narrowed: bool
    ) -> RunError:
        rows = self.splits.train.rows[examples].tolist()
        return not_finite(
            self.known, what, value, step=step + 1, rows=rows, narrowed=narrowed, norms=watchdog.norms
        )

    def _warn(self, progress: Progress, event: Warned) -> None:
        progress.log.append({"step": progress.step + 1, **event.model_dump(mode="json", exclude={"worker"})})
        if self.world.leader:
            self.emit(event)

    def _line(self, progress: Progress, window: Window, rate: float, norm: float) -> None:
        memory = self.world.largest(float(_peak_memory(self.world.device)))
        speed, eta = window.close(progress, self.schedule.total_steps)
        event = Step(
            step=progress.step,
            total_steps=self.schedule.total_steps,
            epoch=round(self.schedule.epoch(progress.step), 4),
            loss=progress.window_loss / max(1, progress.window_tokens),
            learning_rate=rate,
            gradient_norm=norm,
            memory_bytes=int(memory),
            tokens=progress.tokens,
            tokens_per_second=round(speed, 2),
            eta_seconds=round(eta, 1),
        )
        progress.window_loss, progress.window_tokens = 0.0, 0
        progress.log.append(event.model_dump(mode="json", exclude={"worker"}))
        if self.world.leader:
            self.emit(event)


class Window:
    """Speed since the last line."""

    def __init__(self, progress: Progress) -> None:
        self._mark(progress)

    def close(self, progress: Progress, total_steps: int) -> tuple[float, float]:
        """Tokens per second since the last line, and seconds to the end at that pace."""
        seconds = max(progress.seconds - self._seconds, 1e-9)
        steps = progress.step - self._step
        tokens = progress.tokens - self._tokens
        self._mark(progress)
        return tokens / seconds, (total_steps - progress.step) * seconds / max(1, steps)

    def _mark(self, progress: Progress) -> None:
        self._seconds, self._step, self._tokens = progress.seconds, progress.step, progress.tokens


def _seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB (getrusage(2)).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
