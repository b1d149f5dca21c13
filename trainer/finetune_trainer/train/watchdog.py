"""Watches losses and gradient norms step by step, and says once what a person should know: pure.

Whether a loss falls is a question of statistics: batches differ, and a healthy run must not be
alarmed at. So the watchdog waits until the spread of the losses allows for an answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from statistics import fmean, median

from finetune_trainer.config import Warned
from finetune_trainer.train import diagnosis
from finetune_trainer.train.diagnosis import LARGE_NORM, Known

FEWEST = 12
"""Losses that a trend is read from, at least: thirds of four, and eleven differences for the spread."""
_FIRST_PART = 0.1
_PATIENCE = 1.5
"""A trend that the spread hides is looked for again with this many times the losses."""
_SURE = 2.5
"""Standard errors that a difference of means must exceed to be one."""
_FEW = 12.0
"""The spread of n losses is itself uncertain: the errors that count are more by this share of 1/n."""
_HARDLY, _WORSE = 0.04, 0.1
"""A fall of less than this share of the loss is none; a rise of more than that one is no chance."""
_LEARNED = 0.1
"""Loss, in nats a token, below which there is nothing left to fall."""
_START = 4
"""Losses that stand for the beginning: few, since a good run falls fast, and the rate has just set out."""
_KEPT = 32
_SUSTAINED, _OF = 6, 8
"""Gradients are large where so many of the last so many are: one can be a single bad row."""
_SPIKE = 100.0
"""Times the usual norm that make a single one worth telling."""
_STILL = 3
"""Gradients of exactly zero in a row: by chance there is not one."""


class Trend(Enum):
    """What the losses so far say."""

    FALLING = "falling"
    STALLED = "stalled"
    """They fell a little, and then no more."""
    FLAT = "flat"
    RISING = "rising"
    HIDDEN = "hidden"
    """Their spread is too large to tell yet."""


@dataclass
class Watch:
    """What is remembered from step to step, and in checkpoints.

    Attributes:
        steps: optimizer steps seen.
        losses: of each step, in nats a token, until their trend is clear.
        norms: the last gradient norms, before clipping.
        settled: the trend was told, or is no longer looked for.
        told: kinds of warnings that were given.
    """

    steps: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    settled: bool = False
    told: list[str] = field(default_factory=list)

    def at(self, step: int) -> Watch:
        """This watch, where it saw all steps up to `step`; else one that looks for no trend.

        Checkpoints of earlier versions have none, and the middle of a run need not fall.
        """
        return self if self.steps == step else replace(self, steps=step, losses=[], settled=True)


class Watchdog:
    """Turns what steps give into warnings, each kind once a run.

    Args:
        known: of the run.
        watch: what it has seen already; kept up to date.
    """

    def __init__(self, known: Known, watch: Watch) -> None:
        self._known = known
        self._watch = watch

    @property
    def norms(self) -> Sequence[float]:
        """The last gradient norms, before clipping."""
        return self._watch.norms

    @property
    def asks_the_adapter(self) -> bool:
        """Whether the step under way is the one after which the adapter has to have moved.

        Known before the step from its number alone, so that all ranks answer alike.
        """
        return self._watch.steps + 1 == first_look(self._known)

    def look(
        self, loss: float | None, norm: float | None, rows: Sequence[int], *, moved: bool = True
    ) -> list[Warned]:
        """Judge one optimizer step.

        Args:
            loss: mean over the step's trained tokens, in nats; None where it had none.
            norm: the gradient's, before clipping; None where the step was left out.
            rows: source rows, from 0, of its batch.
            moved: False where the adapter is still what it was at the beginning.
        """
        watch = self._watch
        watch.steps += 1
        if loss is None:
            return []
        usual = median(watch.norms) if len(watch.norms) >= _OF else None
        if norm is not None:
            watch.norms = [*watch.norms[1 - _KEPT :], norm]
        if not watch.settled:
            watch.losses.append(loss)
        found = [
            self._once("frozen", self._frozen(moved)),
            self._once("gradients", self._large()),
            self._once("spike", self._spike(norm, usual, rows)),
            self._once("trend", self._trend()),
        ]
        return [warning for warning in found if warning is not None]

    def _once(self, kind: str, warning: Warned | None) -> Warned | None:
        if warning is None or kind in self._watch.told:
            return None
        self._watch.told.append(kind)
        return warning

    def _frozen(self, moved: bool) -> Warned | None:
        last = self._watch.norms[-_STILL:]
        still = len(last) == _STILL and not any(last)
        if moved and not still:
            return None
        start = fmean(self._watch.losses[:_START] or [0.0])
        # That the loss stays where it is follows from this, and would only be said twice.
        self._settle()
        return Warned(
            message=f"the adapter does not learn: its gradient is exactly zero at step {self._watch.steps}"
            if still
            else f"the adapter does not learn: after {self._watch.steps} steps it is what it was before",
            hint=diagnosis.frozen(self._known, start=start),
        )

    def _large(self) -> Warned | None:
        last = self._watch.norms[-_OF:]
        if sum(norm >= LARGE_NORM for norm in last) < _SUSTAINED:
            return None
        return Warned(
            message=f"gradients are large: their norm, before clipping, is around {median(last):.0f} at step"
            f" {self._watch.steps}",
            hint=diagnosis.large_gradients(self._known),
        )

    def _spike(self, norm: float | None, usual: float | None, rows: Sequence[int]) -> Warned | None:
        if norm is None or usual is None or norm < LARGE_NORM or norm <= _SPIKE * usual:
            return None
        return Warned(
            message=f"the gradient's norm, before clipping, was {norm:.0f} at step {self._watch.steps}, after"
            f" {usual:.3g} in the steps before",
            hint=diagnosis.large_gradients(self._known, rows=rows),
        )

    def _trend(self) -> Warned | None:
        watch, known = self._watch, self._known
        losses = watch.losses
        if watch.settled or len(losses) < FEWEST or watch.steps not in looks(known):
            return None
        now = trend(losses)
        if now is Trend.HIDDEN:
            return None
        start, end = fmean(losses[:_START]), fmean(losses[-(len(losses) // 3) :])
        self._settle()
        # Where the model knew nearly all of it, a little is what there was to learn.
        if now is Trend.FALLING or (now is Trend.STALLED and not diagnosis.is_suspect(known, start)):
            return None
        if now is Trend.FLAT and start < _LEARNED:
            return Warned(
                message=f"the loss is {start:.3f} from the first step on: hardly anything is left to learn",
                hint="the model knows this data; where it should not, see with `finetune data` whether the"
                " answers stand in the prompts",
            )
        verb = {Trend.RISING: "rises", Trend.STALLED: "hardly falls"}.get(now, "does not fall")
        return Warned(
            message=f"the loss {verb}: {start:.3f} at the beginning, {end:.3f} by step {watch.steps} of"
            f" {known.total_steps}",
            hint=diagnosis.not_falling(known, start=start, norms=watch.norms),
        )

    def _settle(self) -> None:
        self._watch.settled = True
        self._watch.losses = []


def first_look(known: Known) -> int:
    """The step after which the loss has to fall: a tenth of the run, and enough of it at the full rate."""
    return max(math.ceil(_FIRST_PART * known.total_steps), known.warmup_steps + FEWEST)


def looks(known: Known) -> list[int]:
    """The steps after which the trend is looked for; none where the run is too short to tell."""
    if known.total_steps < FEWEST:
        return []
    steps = [min(first_look(known), known.total_steps)]
    while steps[-1] < known.total_steps:
        steps.append(min(math.ceil(steps[-1] * _PATIENCE), known.total_steps))
    return steps


def trend(losses: Sequence[float]) -> Trend:
    """Whether losses fall, in the order of the steps; at least `FEWEST`.

    The last third is compared with beginnings of several lengths, since some runs fall in a few steps
    and some throughout. The spread comes from the differences between neighbours, which a trend hardly
    touches (von Neumann, "Distribution of the ratio of the mean square successive difference to the
    variance", 1941). A difference of means counts beyond `_SURE` standard errors.
    """
    third = len(losses) // 3
    squares = [(later - earlier) ** 2 for earlier, later in pairwise(losses)]
    spread = math.sqrt(fmean(squares) / 2)
    sure = _SURE * (1 + _FEW / len(losses))
    end = fmean(losses[-third:])

    def fall(part: Sequence[float]) -> tuple[float, float]:
        """How far the loss fell from `part` to the end, and how much of that may be chance."""
        return fmean(part) - end, sure * spread * math.sqrt(1 / len(part) + 1 / third)

    start = fmean(losses[:_START])
    fallen, chance = fall(losses[:_START])
    if -fallen > max(chance, _WORSE * start):
        return Trend.RISING
    sizes = [third]
    while sizes[-1] // 2 >= _START:
        sizes.append(sizes[-1] // 2)
    falls = [fall(losses[:size]) for size in sizes]
    if any(fallen > chance for fallen, chance in falls):
        lately, chance = fall(losses[-2 * third : -third])
        small = max(fallen for fallen, _ in falls) < _HARDLY * start
        return Trend.STALLED if small and 2 * lately < chance else Trend.FALLING
    fallen, chance = falls[0]
    # Not flat where a fall is only not proven: a quick small one drowns in the third that follows it.
    doubtful = any(2 * fallen > chance for fallen, chance in falls)
    return Trend.FLAT if fallen + chance < _HARDLY * start and not doubtful else Trend.HIDDEN
