"""What the engine makes of DeepSpeed's words."""

import math

import pytest

from finetune_trainer.train.engine import readable_norm


@pytest.mark.parametrize("norm", [0.0, 2.5, math.inf])
def test_a_norm_is_itself(norm: float) -> None:
    assert readable_norm(norm) == norm


@pytest.mark.parametrize("norm", [-1.0, -1 / 65536, math.nan])
def test_a_mark_for_no_number_is_no_number(norm: float) -> None:
    assert math.isnan(readable_norm(norm))
