"""Runs that go wrong in ways that only training shows, and what they say of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.end_to_end.conftest import FACTS, Bench

pytestmark = pytest.mark.slow
TRAINING: dict[str, Any] = {
    "maxSteps": 20,
    "globalBatchSize": 8,
    "precision": "FP32",
    "logSteps": 1,
    "warmupRatio": "0",
    "gradientCheckpointing": False,
}
ODD = "~"
"""A character that no row of the facts has."""


def changed(tiny: Path, folder: Path, *, blind: bool = False, chokes_on: str = "") -> Path:
    """The tiny model, damaged."""
    model = LlamaForCausalLM.from_pretrained(tiny)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    with torch.no_grad():
        if blind:
            model.lm_head.weight.zero_()
        for token in tokenizer.encode(chokes_on, add_special_tokens=False):
            model.model.embed_tokens.weight[token] = torch.nan
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_rate_far_too_high(bench: Bench, tiny: Path) -> None:
    run = bench.run(bench.job(tiny, training={**TRAINING, "learningRate": "0.1", "scheduler": "Constant"}))
    (warning,) = [event for event in run.of("warning") if event["message"].startswith("the loss ")]
    assert "of 20" in warning["message"]
    assert "(1) training.learningRate 0.1 is above 0.0005" in warning["hint"]
    log = [json.loads(line) for line in (run.artifact / "train-log.jsonl").read_text().splitlines()]
    (kept,) = [line for line in log if line["event"] == "warning"]
    assert kept["message"] == warning["message"]
    assert 12 <= kept["step"] <= 20


def test_a_model_whose_answer_does_not_depend_on_the_adapter(
    bench: Bench, tiny: Path, tmp_path: Path
) -> None:
    blind = changed(tiny, tmp_path / "blind", blind=True)
    run = bench.run(bench.job(blind, training={**TRAINING, "maxSteps": 4, "learningRate": "1e-3"}))
    (warning,) = run.of("warning")
    assert warning["message"] == "the adapter does not learn: its gradient is exactly zero at step 3"
    assert "the loss begins at" in warning["hint"]
    assert run.code == 10
    assert "nothing was learned" in run.errors


def test_a_loss_that_is_no_number_names_the_rows_it_comes_from(
    bench: Bench, tiny: Path, tmp_path: Path
) -> None:
    rows = FACTS.read_text().splitlines()[:24]
    rows.insert(13, json.dumps({"instruction": f"What does {ODD} mean?", "input": "", "output": "Nothing."}))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    run = bench.run(
        bench.job(
            changed(tiny, tmp_path / "choking", chokes_on=ODD),
            training={**TRAINING, "learningRate": "1e-4", "microBatchSize": 1, "globalBatchSize": 6},
            dataset={
                "sources": [{"uri": f"file://{tmp_path / 'rows.jsonl'}"}],
                "packing": False,
                "split": {"train": 1, "validation": 0, "test": 0},
            },
            workers={"replicas": 2},
        )
    )
    outcome = run.of("outcome")[-1]
    assert (run.code, outcome["reason"]) == (20, "NonFiniteLoss")
    assert outcome["message"].endswith("; rows that it comes from: 14")
    assert "look at those rows" in outcome["hint"]
