"""Healthy runs are left alone, sick ones are told of, once."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune_trainer.config import Warned
from finetune_trainer.train.diagnosis import Known
from finetune_trainer.train.watchdog import FEWEST, Trend, Watch, Watchdog, first_look, looks, trend
from tests.train.test_diagnosis import HEALTHY

SEEDS = 60
Curve = Callable[[NDArray[Any]], NDArray[Any]]
"""Share of the run, 0 to 1, to loss."""


def losses(curve: Curve, steps: int, noise: float, seed: int) -> list[float]:
    """A run's losses; `noise` is their standard deviation as a share of the loss."""
    clean = curve(np.arange(steps) / steps)
    random = np.random.default_rng(seed).standard_normal(steps)
    return [max(float(loss), 1e-3) for loss in clean * (1 + noise * random)]


def watched(series: Sequence[float], known: Known, norms: Sequence[float] | None = None) -> list[Warned]:
    dog = Watchdog(known, Watch())
    given = norms or [1.0] * len(series)
    return [one for loss, norm in zip(series, given, strict=True) for one in dog.look(loss, norm, [0])]


def alarms(curve: Curve, steps: int, noise: float) -> Counter[str]:
    """How runs of this kind were judged, over many seeds."""
    known = replace(HEALTHY, total_steps=steps, warmup_steps=math.ceil(0.03 * steps))
    told: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = watched(losses(curve, steps, noise, seed), known)
        assert len(found) <= 1
        told[found[0].message.split(":")[0] if found else "nothing"] += 1
    return told


@pytest.mark.parametrize("steps", [8, 15, 40, 150, 1000])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
@pytest.mark.parametrize(
    "curve",
    [
        lambda t: 1.3 + 0.4 * np.exp(-30 * t),
        lambda t: 1.3 + 0.4 * np.exp(-8 * t),
        lambda t: 0.05 + 4.2 * np.exp(-20 * t),
        lambda t: 2.5 * (1 - 0.6 * t),
    ],
    ids=["fast", "slow", "far", "straight"],
)
def test_a_run_that_falls_is_left_alone(curve: Curve, noise: float, steps: int) -> None:
    told = alarms(curve, steps, noise)
    assert told["nothing"] >= SEEDS - (noise == 0.2), told


@pytest.mark.parametrize(("steps", "noise"), [(40, 0.02), (150, 0.05), (1000, 0.1)])
@pytest.mark.parametrize(
    ("curve", "verb"),
    [
        (lambda t: 1.5 + 0 * t, "the loss does not fall"),
        (lambda t: np.where(t < 0.03, 2.0, 7.0 + np.exp(-8 * t)), "the loss rises"),
        (lambda t: 1.5 + 10 * t, "the loss rises"),
    ],
    ids=["flat", "diverges", "climbs"],
)
def test_a_run_that_does_not_fall_is_told_of(curve: Curve, verb: str, steps: int, noise: float) -> None:
    told = alarms(curve, steps, noise)
    assert told["nothing"] <= SEEDS // 5, told
    assert told[verb] >= SEEDS * 0.6, told


def test_a_spread_that_hides_the_answer_is_no_answer() -> None:
    assert trend(losses(lambda t: 1.5 + 0 * t, 15, 0.4, seed=1)) is Trend.HIDDEN


def test_a_run_that_stalls_is_told_of_where_more_was_to_be_had() -> None:
    series = losses(lambda t: 6.0 - 0.15 * (t > 0.05), 100, 0.003, seed=1)
    assert watched(series, HEALTHY) == watched([s / 3 for s in series], HEALTHY) == []
    (warning,) = watched(series, replace(HEALTHY, learning_rate=0.1))
    assert warning.message.startswith("the loss hardly falls: 6.0")
    (warning,) = watched(series, replace(HEALTHY, vocabulary=500))
    assert "about that of a blind guess (6.21)" in warning.hint
    assert watched([6.0 - 0.01 * step for step in range(100)], replace(HEALTHY, learning_rate=0.1)) == []


def test_the_figures_and_the_diagnosis() -> None:
    (warning,) = watched([2.0] * 100, replace(HEALTHY, learning_rate=0.02))
    assert warning.message == "the loss does not fall: 2.000 at the beginning, 2.000 by step 22 of 100"
    assert "(1) training.learningRate 0.02 is above 0.0005" in warning.hint


def test_a_loss_that_is_low_already_is_told_otherwise() -> None:
    (warning,) = watched([0.02] * 100, HEALTHY)
    assert "hardly anything is left to learn" in warning.message
    assert "learningRate" not in warning.hint


@pytest.mark.parametrize(
    ("total", "warmup", "expected"),
    [
        (FEWEST - 1, 0, []),
        (FEWEST, 0, [12]),
        (15, 1, [13, 15]),
        (100, 3, [15, 23, 35, 53, 80, 100]),
        (1000, 30, [100, 150, 225, 338, 507, 761, 1000]),
        (100, 100, [100]),
        (1000, 500, [512, 768, 1000]),
    ],
)
def test_when_it_looks(total: int, warmup: int, expected: list[int]) -> None:
    assert looks(replace(HEALTHY, total_steps=total, warmup_steps=warmup)) == expected


def test_steps_without_a_trained_token_are_passed_over() -> None:
    dog = Watchdog(HEALTHY, watch := Watch())
    assert [dog.look(None, 0.0, [0]) for _ in range(40)] == [[]] * 40
    assert (watch.steps, watch.losses, watch.norms) == (40, [], [])


def test_a_gradient_of_zero_is_a_frozen_adapter_and_nothing_else() -> None:
    dog = Watchdog(HEALTHY, Watch())
    told = [warning for _ in range(100) for warning in dog.look(2.0, 0.0, [0])]
    (warning,) = told
    assert warning.message == "the adapter does not learn: its gradient is exactly zero at step 3"


def test_an_adapter_that_has_not_moved() -> None:
    dog = Watchdog(HEALTHY, Watch())
    told = []
    for step in range(1, 40):
        asked = dog.asks_the_adapter
        assert asked == (step == first_look(HEALTHY))
        told += dog.look(2.0, 1.0, [0], moved=not asked)
    (warning,) = told
    assert warning.message == "the adapter does not learn: after 22 steps it is what it was before"


@pytest.mark.parametrize(
    ("norms", "told"),
    [
        ([1.0] * 20 + [2e3] * 20, "gradients are large: their norm, before clipping, is around 2000"),
        ([2e3] * 40, "gradients are large"),
        (
            [1.0] * 20 + [5e3] + [1.0] * 19,
            "the gradient's norm, before clipping, was 5000 at step 21, after 1 in",
        ),
        ([100.0] * 20 + [5e3] + [100.0] * 19, None),
        ([1.0] * 20 + [900.0] + [1.0] * 19, None),
        ([5e3] + [1.0] * 39, None),
        ([900.0] * 40, None),
    ],
    ids=["from-then-on", "always", "spike", "small-spike", "below", "at-the-start", "high"],
)
def test_large_gradients(norms: list[float], told: str | None) -> None:
    falling = [3.0 - 0.05 * step for step in range(40)]
    found = watched(falling, HEALTHY, norms)
    if told is None:
        assert found == []
    else:
        assert [told in warning.message for warning in found].count(True) == 1


def test_a_spike_names_its_rows() -> None:
    dog = Watchdog(HEALTHY, Watch(norms=[1.0] * 10))
    (warning,) = dog.look(1.0, 3e3, [8, 2])
    assert "look at the rows of that batch: 3, 9" in warning.hint


def test_steps_that_were_left_out_have_no_norm() -> None:
    dog = Watchdog(HEALTHY, watch := Watch(norms=[1.0] * 10))
    assert dog.look(1.0, None, [0]) == []
    assert len(watch.norms) == 10


@pytest.mark.parametrize("stop", [5, 21, 60])
def test_a_resumed_run_is_told_what_an_undisturbed_one_is(stop: int) -> None:
    series = losses(lambda t: 1.5 + 0 * t, 100, 0.02, seed=3)
    norms = [1.0] * 50 + [3e3] * 50
    watch = Watch()
    told = []
    for step, (loss, norm) in enumerate(zip(series, norms, strict=True)):
        if step == stop:
            watch = Watch(**asdict(watch)).at(stop)
        told += Watchdog(HEALTHY, watch).look(loss, norm, [0])
    assert told == watched(series, HEALTHY, norms)
    assert len(told) == 3


def test_the_middle_of_a_run_need_not_fall() -> None:
    dog = Watchdog(HEALTHY, Watch().at(50))
    assert [dog.look(2.0, 1.0, [0]) for _ in range(50)] == [[]] * 50
