"""The DeepSpeed configuration of a job."""

from typing import Any, Literal

import pytest

from finetune_trainer.config import (
    Dataset,
    DeepSpeed,
    ExitReason,
    Model,
    Output,
    RunConfig,
    RunError,
    Source,
    Training,
    Workers,
)
from finetune_trainer.train.zero import configuration, overlay, stage_of

Precision = Literal["BF16", "FP16", "FP32"]


def run(precision: Precision = "BF16", gpus: int = 8, **deepspeed: Any) -> RunConfig:
    return RunConfig(
        name="job",
        uid="uid",
        model=Model(uri="hf://a/b"),
        dataset=Dataset(sources=[Source(uri="s3://a/b")]),
        output=Output(uri="s3://a/out"),
        training=Training(precision=precision, max_gradient_norm=0.7),
        workers=Workers(gpus_per_worker=gpus),
        deepspeed=DeepSpeed(**deepspeed),
    )


@pytest.mark.parametrize(
    ("deepspeed", "stage"),
    [
        ({}, 2),
        ({"stage": 0}, 0),
        ({"stage": 3}, 3),
        ({"offload_optimizer": "CPU"}, 2),
        ({"offload_parameters": "CPU"}, 3),
        ({"stage": 1, "offload_optimizer": "CPU"}, 1),
    ],
)
def test_stage(deepspeed: dict[str, Any], stage: int) -> None:
    assert stage_of(run(**deepspeed)) == stage
    assert configuration(run(**deepspeed))["zero_optimization"]["stage"] == stage


@pytest.mark.parametrize(
    ("precision", "stage", "expected"),
    [
        ("BF16", 2, {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}),
        ("BF16", 0, {"bf16": {"enabled": True}}),
        ("FP16", 2, {"fp16": {"enabled": True}}),
        ("FP32", 2, {}),
    ],
)
def test_precision(precision: Precision, stage: int, expected: dict[str, Any]) -> None:
    config = configuration(run(precision, stage=stage))
    assert {key: config[key] for key in ("bf16", "fp16", "data_types") if key in config} == expected


def test_offload() -> None:
    zero = configuration(run(offload_optimizer="CPU", offload_parameters="CPU"))["zero_optimization"]
    assert zero["offload_optimizer"] == zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    on_cpu = configuration(run(gpus=0, offload_optimizer="CPU"))["zero_optimization"]
    assert on_cpu["offload_optimizer"]["pin_memory"] is False


def test_the_job_decides_clipping() -> None:
    assert configuration(run())["gradient_clipping"] == 0.7


@pytest.mark.parametrize(
    ("expert", "key", "field"),
    [
        ({"train_batch_size": 8}, "train_batch_size", "globalBatchSize"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps", "microBatchSize"),
        ({"bf16": {"enabled": False}}, "bf16", "precision"),
        ({"optimizer": {"type": "Lion"}}, "optimizer", "learningRate"),
        ({"zero_optimization": {"stage": 1}}, "zero_optimization.stage", "deepspeed.stage"),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.device",
            "offloadParameters",
        ),
    ],
)
def test_the_overlay_may_not_contradict_the_job(expert: dict[str, Any], key: str, field: str) -> None:
    with pytest.raises(RunError) as caught:
        configuration(run(config=expert))
    assert caught.value.reason is ExitReason.INVALID_CONFIGURATION
    assert key in caught.value.message
    assert field in caught.value.hint


def test_the_overlay_adds_keys_at_any_depth_and_changes_nothing_else() -> None:
    base = {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}
    merged = overlay(base, {"zero_optimization": {"overlap_comm": True}, "comms_logger": {"enabled": True}})
    assert merged == {
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "gradient_clipping": 1.0,
        "comms_logger": {"enabled": True},
    }
    assert base == {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}


def test_a_section_may_not_be_replaced_by_a_value() -> None:
    with pytest.raises(RunError, match=r"zero_optimization, which the job decides"):
        configuration(run(config={"zero_optimization": True}))
