"""Why training goes wrong, told from what is known of the run: pure.

Every cause comes with its remedy, in the words of the job file, the likeliest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from finetune_trainer.config import ExitReason, RunConfig, RunError
from finetune_trainer.data.report import Report
from finetune_trainer.train.learning_rate import warmup_steps

HIGH_RATE, LOW_RATE = 5e-4, 1e-5
"""Learning rates between which adapters of most models learn."""
_GOOD_RATE = 2e-4
LITTLE, MUCH = 0.05, 0.95
"""Shares of trained tokens between which a chat set usually lies."""
_MANY_TRUNCATED = 0.2
_GUESSING = 0.8
"""Share of ln(vocabulary), the loss of a blind guess, above which a base model knows nothing of the text."""
LARGE_NORM = 1e3
"""A gradient norm, before clipping, that no healthy run of an adapter has."""
_GROWTH = 10.0
_ROWS_NAMED = 16


@dataclass(frozen=True)
class Known:
    """What is known of a run before its first step.

    Attributes:
        total_steps: optimizer steps of the run.
        learning_rate: the highest of the schedule.
        warmup_steps: steps until it is reached.
        precision: of the weights and the arithmetic.
        max_gradient_norm: gradients are scaled down to it; 0 does not.
        vocabulary: token ids that the model knows.
        template: the prompt template's name; `Model` is the model's own.
        learns_everything: prompts are trained too, so that no share of trained tokens is odd.
        trained_share: trained tokens by all tokens of the train split.
        truncated_share: rows cut to the maximum length by all rows.
        data_warnings: how many warnings there were about the data.
    """

    total_steps: int
    learning_rate: float
    warmup_steps: int
    precision: str
    max_gradient_norm: float
    vocabulary: int
    template: str
    learns_everything: bool
    trained_share: float
    truncated_share: float
    data_warnings: int

    @classmethod
    def of(cls, run: RunConfig, report: Report, *, total_steps: int, vocabulary: int) -> Known:
        """Take it from the run and from the verdict on its data."""
        train = report.splits["train"]
        return cls(
            total_steps=total_steps,
            learning_rate=run.training.learning_rate,
            warmup_steps=warmup_steps(run.training, total_steps),
            precision=run.training.precision,
            max_gradient_norm=run.training.max_gradient_norm,
            vocabulary=vocabulary,
            template=run.dataset.template,
            learns_everything=run.dataset.loss == "All",
            trained_share=train.trained_tokens / max(1, train.tokens),
            truncated_share=report.truncated / max(1, report.rows),
            data_warnings=len(report.warnings),
        )


def not_falling(known: Known, *, start: float, norms: Sequence[float]) -> str:
    """Why a loss does not fall.

    Args:
        known: of the run.
        start: loss of the first steps, in nats.
        norms: the last gradient norms, before clipping.
    """
    return _ranked(
        _high_rate(known),
        _large_norms(norms),
        _guessing(known, start),
        _low_rate(known),
        _template(known),
        _share(known),
        _truncated(known),
        _data(known),
        ["see with `finetune data` what is learned; where the model knows such text already, all is well"],
    )


def is_suspect(known: Known, start: float) -> bool:
    """Whether a loss that starts at `start` nats and falls a little ought to fall further."""
    return any((*_high_rate(known), *_guessing(known, start)))


def frozen(known: Known, *, start: float) -> str:
    """Why an adapter does not move; `start` is the loss of the first steps, in nats."""
    return _ranked(
        ["in FP16 small gradients become zero: write training.precision: BF16"]
        if known.precision == "FP16"
        else [],
        _guessing(known, start),
        ["the adapted layers have no part in the output: choose other adapter.targetModules, or all-linear"],
        ["the base model's weights are damaged: download it again"],
    )


def large_gradients(known: Known, *, rows: Sequence[int] = ()) -> str:
    """Why gradients are large; `rows`, from 0, are those of the batch in question, if it is one batch."""
    return _ranked(
        _high_rate(known),
        _unclipped(known),
        [f"look at the rows of that batch: {named(rows)}"] if rows else [],
        ["warm up longer: training.warmupRatio: 0.1"] if known.warmup_steps * 20 < known.total_steps else [],
        _half_precision(known),
        _template(known),
        ["look for rows of garbage or of another language with `finetune data`"],
    )


def not_finite(
    known: Known,
    what: str,
    value: float,
    *,
    step: int,
    rows: Iterable[int],
    narrowed: bool,
    norms: Sequence[float],
) -> RunError:
    """The end of a run whose numbers have left the rails.

    Args:
        known: of the run.
        what: the name of the number, such as `the loss`.
        value: the number.
        step: the optimizer step, counted from 1.
        rows: source rows, from 0, that it comes from.
        narrowed: they are those of the very forward passes that went wrong, not of the whole batch.
        norms: the gradient norms of the steps before.
    """
    whose = "rows that it comes from" if narrowed else "rows of that batch"
    if step == 1:
        causes = _ranked(
            _half_precision(known),
            ["nothing was learned yet, so the base model itself gives it: download the model again"],
            ["look at those rows"],
        )
    else:
        causes = _ranked(
            _high_rate(known),
            _growing(norms),
            _unclipped(known),
            _half_precision(known),
            ["look at those rows"],
            ["lower training.learningRate"] if known.learning_rate <= HIGH_RATE else [],
        )
    return RunError(
        ExitReason.NON_FINITE_LOSS, f"{what} is {value} at step {step}; {whose}: {named(rows)}", causes
    )


def named(rows: Iterable[int]) -> str:
    """Source rows, given from 0, as people count them; the first of them where they are many."""
    numbers = sorted({int(row) + 1 for row in rows})
    more = f" and {len(numbers) - _ROWS_NAMED} more" if len(numbers) > _ROWS_NAMED else ""
    return ", ".join(map(str, numbers[:_ROWS_NAMED])) + more


def _ranked(*causes: Iterable[str]) -> str:
    told = [cause for some in causes for cause in some]
    if len(told) == 1:
        return told[0]
    return "likeliest first: " + "; ".join(f"({place}) {cause}" for place, cause in enumerate(told, 1))


def _high_rate(known: Known) -> Iterator[str]:
    if known.learning_rate > HIGH_RATE:
        yield (
            f"training.learningRate {known.learning_rate:g} is above {HIGH_RATE:g}, which is much for most"
            f" models: lower it to {_GOOD_RATE:g}"
        )


def _low_rate(known: Known) -> Iterator[str]:
    if known.learning_rate < LOW_RATE:
        yield (
            f"training.learningRate {known.learning_rate:g} is little for an adapter: raise it to"
            f" {_GOOD_RATE:g}"
        )


def _large_norms(norms: Sequence[float]) -> Iterator[str]:
    if norms and (middle := median(norms)) >= LARGE_NORM:
        yield f"the gradient's norm is around {middle:.0f}: training diverges, lower training.learningRate"


def _growing(norms: Sequence[float]) -> Iterator[str]:
    if len(norms) < 2:
        return
    before, last = median(norms[:-1]), norms[-1]
    if last > _GROWTH * before or last >= LARGE_NORM:
        yield (
            f"the gradient's norm had grown from {before:.3g} to {last:.3g} in the steps before: lower"
            " training.learningRate or raise training.warmupRatio"
        )


def _unclipped(known: Known) -> Iterator[str]:
    if known.max_gradient_norm == 0:
        yield "gradients are not clipped: set training.maxGradientNorm: 1"


def _half_precision(known: Known) -> Iterator[str]:
    if known.precision == "FP16":
        yield "FP16 ends at 65504, and models made in BF16 exceed it: write training.precision: BF16"


def _guessing(known: Known, start: float) -> Iterator[str]:
    blind = math.log(known.vocabulary)
    if start > _GUESSING * blind:
        yield (
            f"the loss begins at {start:.2f}, about that of a blind guess ({blind:.2f}): the tokenizer or"
            " the template is not this model's, or its weights are damaged"
        )


def _template(known: Known) -> Iterator[str]:
    if known.template != "Model":
        yield (
            f"dataset.template {known.template} may not be what this model was trained with: Model is its own"
        )


def _share(known: Known) -> Iterator[str]:
    if known.learns_everything:
        return
    if known.trained_share < LITTLE:
        yield (
            f"only {known.trained_share:.1%} of the tokens are trained: shorten the prompts, or check that"
            " the answers are in the right column"
        )
    elif known.trained_share > MUCH:
        yield (
            f"{known.trained_share:.1%} of the tokens are trained: check that questions and answers are not"
            " swapped"
        )


def _truncated(known: Known) -> Iterator[str]:
    if known.truncated_share >= _MANY_TRUNCATED:
        yield f"{known.truncated_share:.0%} of the rows are cut off: raise dataset.maxLength"


def _data(known: Known) -> Iterator[str]:
    if known.data_warnings:
        warnings = "warning" if known.data_warnings == 1 else f"{known.data_warnings} warnings"
        yield f"heed the {warnings} about the data"
