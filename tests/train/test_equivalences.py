"""However a global batch is computed, what is learned is the same (fp32, two layers, 50 steps).

Per step an absolute tolerance. Over all steps the differences must scatter around zero: a drift to one
side is a bug however small, down to what fp32 can tell apart.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.gangs import run_gang

PROGRAM = Path(__file__).parent / "programs" / "equivalences.py"
STEPS = 50
RESOLUTION = 2.4e-7
"""Half of what two neighbouring fp32 losses of these runs, around 5, differ by."""
pytestmark = pytest.mark.slow

Results = dict[str, dict[str, Any]]
"""What each case left behind, by its name."""


def gang(ranks: int, cases: list[dict[str, Any]], folder: Path) -> Results:
    """Run `cases` on `ranks` ranks; what each left behind by name."""
    given, out = folder / f"cases-{ranks}.json", folder / f"results-{ranks}.json"
    given.write_text(json.dumps([{"steps": STEPS, "stage": 0, **case} for case in cases]))
    run_gang(PROGRAM, [given, out], ranks=ranks)
    results: Results = json.loads(out.read_text())
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("equivalences")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Results:
    return gang(
        1,
        [
            {"name": "reference"},
            {"name": "unfused", "fused": False},
            {"name": "padded", "packs": False},
            {"name": "accumulated", "row_tokens": 1},
            # At a rate that does not blow up the last bits: this tolerance is two of them.
            {"name": "eight", "packs": False, "micro_batch": 8, "rate": 2e-3},
            {"name": "twice-four", "packs": False, "micro_batch": 4, "rate": 2e-3},
            {"name": "checkpointed", "checkpointing": True},
            {"name": "dropout", "dropout": 0.2, "restart": 20},
            {"name": "zero3", "stage": 3, "restart": 20, "dropout": 0.2},
            {"name": "bf16", "precision": "BF16", "stage": 2},
        ],
        folder,
    )


@pytest.fixture(scope="module")
def pair(folder: Path, alone: Results) -> Results:
    return gang(
        2,
        [
            *({"name": f"zero{stage}", "stage": stage, "restart": 20} for stage in range(4)),
            *({"name": f"bf16-{stage}", "stage": stage, "precision": "BF16"} for stage in range(4)),
        ],
        folder,
    )


def same(
    ours: dict[str, Any], reference: dict[str, Any], *, loss: float, weights: float | None = None
) -> None:
    difference = np.array(ours["losses"]) - np.array(reference["losses"])
    assert np.abs(difference).max() <= loss
    assert abs(difference.mean()) <= max(RESOLUTION, np.sqrt((difference**2).mean()) / 2)
    np.testing.assert_allclose(ours["norms"], reference["norms"], rtol=1e-3, atol=1e-4)
    if weights is not None:
        for name, value in ours["weights"].items():
            np.testing.assert_allclose(value, reference["weights"][name], rtol=0, atol=weights)


def test_something_is_learned(alone: Results) -> None:
    losses = alone["reference"]["losses"]
    assert len(losses) == STEPS
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.05
    assert all(norm > 0 for norm in alone["reference"]["norms"])


def test_padded_equals_packed(alone: Results) -> None:
    same(alone["padded"], alone["reference"], loss=1e-5, weights=1e-5)


def test_one_row_an_example_equals_few_long_rows(alone: Results) -> None:
    same(alone["accumulated"], alone["reference"], loss=1e-5, weights=1e-5)


def test_eight_at_once_equal_twice_four_with_a_ragged_tail(alone: Results) -> None:
    same(alone["twice-four"], alone["eight"], loss=1e-6, weights=1e-5)


def test_gradient_checkpointing_changes_nothing(alone: Results) -> None:
    assert alone["checkpointed"]["losses"] == alone["reference"]["losses"]
    assert alone["checkpointed"]["weights"] == alone["reference"]["weights"]


def test_the_fused_layer_equals_pefts(alone: Results) -> None:
    same(alone["unfused"], alone["reference"], loss=1e-5, weights=1e-5)


@pytest.mark.parametrize("name", ["dropout", "zero3"])
def test_resumed_equals_undisturbed_to_the_bit(alone: Results, name: str) -> None:
    assert alone[name]["losses_again"] == alone[name]["tail"]
    assert alone[name]["same_weights"]


@pytest.mark.parametrize("stage", range(4))
def test_two_ranks_at_any_stage_equal_one(alone: Results, pair: Results, stage: int) -> None:
    same(pair[f"zero{stage}"], alone["reference"], loss=1e-5, weights=1e-5)
    assert pair[f"zero{stage}"]["losses_again"] == pair[f"zero{stage}"]["tail"]
    assert pair[f"zero{stage}"]["same_weights"]


@pytest.mark.parametrize("stage", range(4))
def test_bf16_follows_fp32_at_every_stage(alone: Results, pair: Results, stage: int) -> None:
    for ours in (pair[f"bf16-{stage}"], alone["bf16"]):
        difference = np.array(ours["losses"]) - np.array(alone["reference"]["losses"])
        assert np.abs(difference).max() <= 5e-2
        assert abs(difference.mean()) <= 5e-3


def test_evaluation_does_not_depend_on_ranks_or_rows(alone: Results, pair: Results) -> None:
    loss, tokens = alone["reference"]["evaluation"]
    for other in (alone["padded"], alone["accumulated"], *(pair[f"zero{stage}"] for stage in range(4))):
        assert other["evaluation"][1] == tokens
        assert other["evaluation"][0] == pytest.approx(loss, abs=1e-5)


@pytest.fixture(scope="module")
def continued(folder: Path, pair: Results) -> Results:
    return gang(
        1,
        [
            {"name": f"{stage}", "continue": f"zero{stage}.safetensors", "continue_at": 20}
            for stage in range(4)
        ],
        folder,
    )


@pytest.mark.parametrize("stage", range(4))
def test_a_checkpoint_of_two_ranks_continues_on_one(alone: Results, continued: Results, stage: int) -> None:
    losses = continued[str(stage)]["losses"]
    np.testing.assert_allclose(losses, alone["reference"]["losses"][20:], rtol=0, atol=1e-5)
