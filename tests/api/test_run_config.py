"""A job resolved into the contract of its stages, and the name of a local run."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from finetune_operator import run_config
from finetune_operator.api import FineTuneJob, load_job, parse
from finetune_trainer.config import Quantization, RunConfig

Build = Callable[..., dict[str, Any]]


def parsed(value: dict[str, Any], *, local: bool = False) -> FineTuneJob:
    job = parse(value, local=local)
    assert isinstance(job, FineTuneJob), job
    return job


def test_every_field_arrives(jobs: Path) -> None:
    run = run_config.build(load_job(jobs / "everything.yaml"), uid="0f1e", attempt=3)
    assert run.model_dump() == {
        "version": 1,
        "name": "nightly-reference",
        "namespace": "default",
        "uid": "0f1e",
        "attempt": 3,
        "model": {
            "uri": "hf://meta-llama/Meta-Llama-3-70B-Instruct",
            "revision": "main",
            "credentials": "hf-token",
            "attention": "SDPA",
            "trust_remote_code": False,
        },
        "dataset": {
            "sources": [
                {"uri": "s3://training/support/2026-q3.jsonl", "format": "Messages", "credentials": "minio"},
                {"uri": "s3://training/support/edge-cases.json", "format": "Alpaca", "credentials": "minio"},
            ],
            "template": "Llama3",
            "system_prompt": "You answer questions about invoices for a wholesaler. "
            "You never invent an invoice number.",
            "max_length": 4096,
            "overlong": "Drop",
            "loss": "LastTurn",
            "packing": True,
            "split": {"train": 8, "validation": 1, "test": 1, "seed": 7},
        },
        "adapter": {
            "rank": 32,
            "alpha": 64,
            "dropout": 0.1,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "rank_stabilized": True,
            "quantization": {"type": "NF4", "double_quantization": True},
        },
        "training": {
            "epochs": 2.0,
            "max_steps": None,
            "learning_rate": 1.5e-4,
            "scheduler": "Linear",
            "warmup_ratio": 0.05,
            "weight_decay": 0.01,
            "max_gradient_norm": 0.3,
            "global_batch_size": 128,
            "micro_batch_size": 4,
            "precision": "BF16",
            "gradient_checkpointing": True,
            "seed": 1234,
            "log_steps": 5,
            "evaluation_steps": 250,
        },
        "checkpoint": {"steps": 250, "keep": 5},
        "workers": {"replicas": 2, "gpus_per_worker": 8},
        "deepspeed": {
            "stage": 3,
            "offload_optimizer": "None",
            "offload_parameters": "None",
            "config": {
                "wall_clock_breakdown": False,
                "zero_optimization": {"overlap_comm": True, "reduce_bucket_size": 200000000},
            },
        },
        "output": {"uri": "s3://adapters/nightly-reference", "credentials": "minio", "merge": True},
        "retry": {"hang_seconds": 1200, "rendezvous_seconds": 900},
    }
    assert RunConfig.model_validate_json(run.model_dump_json()) == run


def test_both_sides_have_the_same_defaults(job_with: Build) -> None:
    run = run_config.build(parsed(job_with()), uid="u")
    assert run == RunConfig(name=run.name, uid="u", model=run.model, dataset=run.dataset, output=run.output)
    assert run.dataset.model_dump(exclude={"sources"}) == {
        name: run.dataset.__class__.model_fields[name].get_default(call_default_factory=True)
        if name != "split"
        else run.dataset.split.__class__().model_dump()
        for name in run.dataset.model_dump(exclude={"sources"})
    }


@pytest.mark.parametrize(
    ("training", "epochs", "steps"),
    [({}, 3.0, None), ({"epochs": "0.5"}, 0.5, None), ({"maxSteps": 10}, None, 10)],
    ids=str,
)
def test_a_run_has_one_length(
    training: dict[str, Any], epochs: float | None, steps: int | None, job_with: Build
) -> None:
    run = run_config.build(parsed(job_with(("spec.training", training))), uid="u")
    assert (run.training.epochs, run.training.max_steps) == (epochs, steps)


@pytest.mark.parametrize(
    ("adapter", "quantization"),
    [
        ({"method": "LoRA"}, None),
        ({"method": "QLoRA"}, Quantization()),
        (
            {"method": "QLoRA", "quantization": {"doubleQuantization": False}},
            Quantization(double_quantization=False),
        ),
    ],
    ids=str,
)
def test_quantization(adapter: dict[str, Any], quantization: Quantization | None, job_with: Build) -> None:
    assert (
        run_config.build(parsed(job_with(("spec.adapter", adapter))), uid="u").adapter.quantization
        == quantization
    )


def test_the_namespace_is_kept(job_with: Build) -> None:
    assert run_config.build(parsed(job_with(("metadata.namespace", "ml"))), uid="u").namespace == "ml"


def test_files_are_made_absolute(job_with: Build) -> None:
    job = parsed(
        job_with(
            ("spec.model.uri", "file://~/models/x"),
            (
                "spec.dataset.sources",
                [{"uri": "file://./rows.jsonl", "format": "Alpaca"}, {"uri": "s3://b/x"}],
            ),
            ("spec.output.uri", "file://../runs"),
        ),
        local=True,
    )
    before = copy.deepcopy(job)
    resolved = run_config.with_absolute_files(
        job, folder=PurePosixPath("/a/b"), home=PurePosixPath("/home/lin")
    )
    run = run_config.build(resolved, uid="u")
    assert run.model.uri == "file:///home/lin/models/x"
    assert [(source.uri, source.format) for source in run.dataset.sources] == [
        ("file:///a/b/rows.jsonl", "Alpaca"),
        ("s3://b/x", "Auto"),
    ]
    assert run.output.uri == "file:///a/runs"
    assert job == before


CONTINUES: list[tuple[str, Any]] = [
    ("spec.training.learningRate", "0.0001"),
    ("spec.training.epochs", "3.0"),
    ("spec.training.logSteps", 1),
    ("spec.training.evaluationSteps", 1),
    ("spec.training.microBatchSize", 4),
    ("spec.training.gradientCheckpointing", False),
    ("spec.checkpoint", {"steps": 1}),
    ("spec.workers", {"replicas": 2, "gpusPerWorker": 0}),
    ("spec.deepspeed.stage", 3),
    ("spec.suspend", True),
    ("spec.protection.warnCelsius", 90),
    ("spec.retry.limit", 0),
    ("spec.deadlineSeconds", 60),
    ("spec.ttlSecondsAfterFinished", 60),
    ("spec.cost", {"currency": "CNY", "gpuHour": "1"}),
    ("spec.model.credentialsSecret", "other"),
    ("spec.dataset.sources", [{"uri": "s3://training/hello.jsonl", "credentialsSecret": "other"}]),
    ("metadata.labels", {"a": "b"}),
]
BEGINS_ANEW: list[tuple[str, Any]] = [
    ("metadata.name", "second-try"),
    ("spec.model.uri", "hf://a/b"),
    ("spec.model.revision", "v2"),
    ("spec.dataset.sources", [{"uri": "s3://training/other.jsonl"}]),
    ("spec.dataset.template", "ChatML"),
    ("spec.dataset.maxLength", 1024),
    ("spec.dataset.split", {"seed": 1}),
    ("spec.adapter.method", "QLoRA"),
    ("spec.adapter.rank", 8),
    ("spec.training.maxSteps", 10),
    ("spec.training.learningRate", "2e-4"),
    ("spec.training.globalBatchSize", 16),
    ("spec.training.precision", "FP32"),
    ("spec.training.seed", 1),
    ("spec.output.uri", "s3://adapters/other"),
]


def test_a_uid_is_short_and_does_not_depend_on_the_order_of_fields(job_with: Build) -> None:
    job = job_with(("spec.training", {"seed": 1, "precision": "FP32"}))
    turned = {key: dict(reversed(part.items())) if key == "spec" else part for key, part in job.items()}
    uid = run_config.local_uid(parsed(job))
    assert re.fullmatch(r"[0-9a-f]{12}", uid)
    assert run_config.local_uid(parsed(turned)) == uid


@pytest.mark.parametrize(("path", "value"), CONTINUES, ids=lambda part: str(part)[:40])
def test_what_is_not_learned_continues_the_run(path: str, value: Any, job_with: Build) -> None:
    assert run_config.local_uid(parsed(job_with((path, value)))) == run_config.local_uid(parsed(job_with()))


def test_what_is_learned_begins_a_run(job_with: Build) -> None:
    uids = [run_config.local_uid(parsed(job_with(change))) for change in BEGINS_ANEW]
    uids.append(run_config.local_uid(parsed(job_with())))
    assert len(set(uids)) == len(BEGINS_ANEW) + 1
