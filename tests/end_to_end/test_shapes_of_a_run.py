"""The same job on one rank or two, at any ZeRO stage, quantised or not: the same kind of adapter."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.end_to_end.conftest import Bench
from tests.fixtures.smollm2 import smollm2

pytestmark = pytest.mark.slow
TRAINING = {
    "maxSteps": 3,
    "globalBatchSize": 8,
    "precision": "FP32",
    "logSteps": 1,
    "learningRate": "1e-2",
    "warmupRatio": "0",
}


def form(artifact: Path) -> tuple[list[str], dict[str, tuple[int, ...]], list[str]]:
    """What an adapter is made of, without its values."""
    tensors = load_file(artifact / "adapter_model.safetensors")
    config = json.loads((artifact / "adapter_config.json").read_text())
    files = sorted(path.name for path in artifact.iterdir())
    return files, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, config["target_modules"]


def logits_with_and_without(model: Path, artifact: Path) -> tuple[torch.Tensor, torch.Tensor]:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(artifact)("How much memory does an MI300X have?", return_tensors="pt")
    with torch.no_grad():
        plain = base(**ids).logits
        tuned = PeftModel.from_pretrained(base, artifact)(**ids).logits
    return plain, tuned


def test_two_workers_zero3_qlora_on_the_real_model_leave_what_one_process_leaves(bench: Bench) -> None:
    model = smollm2()
    training = {
        "maxSteps": 2,
        "globalBatchSize": 4,
        "precision": "FP32",
        "logSteps": 1,
        "learningRate": "1e-3",
    }
    dataset = {"maxLength": 128, "split": {"train": 38, "validation": 1, "test": 1, "seed": 1}}
    one = bench.run(bench.job(model, name="one", output="one", training=training, dataset=dataset))
    assert one.code == 0, one.errors
    two = bench.run(
        bench.job(
            model,
            name="two",
            output="two",
            training=training,
            dataset=dataset,
            adapter={"method": "QLoRA"},
            workers={"replicas": 2},
            deepspeed={"stage": 3},
        )
    )
    assert two.code == 0, two.errors
    assert form(one.artifact) == form(two.artifact)
    manifests = [json.loads((run.artifact / "manifest.json").read_text()) for run in (one, two)]
    assert manifests[0].keys() == manifests[1].keys()
    for run in (one, two):
        plain, tuned = logits_with_and_without(model, run.artifact)
        assert (plain - tuned).abs().max() > 1e-3
        (artifact,) = run.of("artifact")
        assert artifact["test_loss_after"] < artifact["test_loss_before"]


@pytest.mark.parametrize(
    "spec",
    [
        {"deepspeed": {"stage": 3, "offloadOptimizer": "CPU", "offloadParameters": "CPU"}},
        {"deepspeed": {"stage": 2, "offloadOptimizer": "CPU"}, "workers": {"replicas": 2}},
        {"deepspeed": {"stage": 0}, "training": {"precision": "BF16"}},
        {
            "deepspeed": {"stage": 1},
            "adapter": {"targetModules": ["q_proj", "v_proj"], "rankStabilized": True},
        },
        {"dataset": {"packing": False}, "training": {"microBatchSize": 2, "gradientCheckpointing": False}},
        {"model": {"attention": "Eager"}, "training": {"scheduler": "Linear"}},
    ],
    ids=["offload-all", "offload-optimizer-two", "bf16-zero0", "named-targets", "unpacked", "eager"],
)
def test_ways_to_train(bench: Bench, tiny: Path, spec: dict[str, Any]) -> None:
    merged = {**spec}
    defaults = {
        "maxSteps": 3,
        "globalBatchSize": 8,
        "precision": "FP32",
        "logSteps": 1,
        "learningRate": "1e-2",
    }
    merged["training"] = {**defaults, **spec.get("training", {})}
    run = bench.run(bench.job(tiny, **merged))
    assert run.code == 0, run.errors
    assert list(run.losses) == [1, 2, 3]
    plain, tuned = logits_with_and_without(tiny, run.artifact)
    assert (plain - tuned).abs().max() > 1e-4
    assert run.of("warning") == []


def test_fp16_trains_or_says_that_this_processor_cannot(bench: Bench, tiny: Path) -> None:
    run = bench.run(bench.job(tiny, training={**TRAINING, "precision": "FP16"}))
    if run.code == 0:
        assert list(run.losses) == [1, 2, 3]
    else:
        assert run.code == 10
        assert "training.precision is FP16" in run.errors
        assert "write BF16 or FP32" in run.errors
