"""The learning rate of each step."""

from typing import Literal

import pytest

from finetune_trainer.config import Training
from finetune_trainer.train.learning_rate import learning_rate

Scheduler = Literal["Cosine", "Linear", "Constant"]


def rates(scheduler: Scheduler, warmup: float, steps: int = 10) -> list[float]:
    training = Training(learning_rate=1.0, scheduler=scheduler, warmup_ratio=warmup)
    return [learning_rate(training, step, steps) for step in range(steps)]


def test_the_first_step_of_a_warm_up_neither_wasted_nor_at_full_rate() -> None:
    assert rates("Constant", 0.3) == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 7)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    schedulers: tuple[Scheduler, ...] = ("Constant", "Linear", "Cosine")
    for scheduler in schedulers:
        assert rates(scheduler, 0.0)[0] == 1.0


def test_linear_ends_one_step_above_zero() -> None:
    assert rates("Linear", 0.0) == pytest.approx([1 - step / 10 for step in range(10)])


def test_cosine_is_half_way_in_the_middle_and_falls_all_the_time() -> None:
    values = rates("Cosine", 0.0)
    assert values[5] == pytest.approx(0.5)
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 0.05


def test_warm_up_of_everything() -> None:
    assert rates("Cosine", 1.0) == pytest.approx([(step + 1) / 11 for step in range(10)])
