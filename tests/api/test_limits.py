"""The limits of single fields: the last value allowed and the first one that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from finetune_operator.api import FineTuneJob, parse, spell

LIMITS: list[tuple[str, list[Any], list[Any]]] = [
    ("metadata.name", ["a", "a-1", "a" * 49], ["", "1a", "a-", "-a", "a.b", "a_b", "A", "a" * 50, 7]),
    ("metadata.namespace", ["ml", "0"], ["ML", "a.b", "-"]),
    (
        "metadata.labels",
        [{"a.b/c": ""}, {"x": "A_b.c-9"}],
        [{"a b": "x"}, {"x": "a b"}, {"x": "y" * 64}, {"x": 1}],
    ),
    ("metadata.annotations", [{"A.b/c": "any\ntext"}], [{"/": "x"}, {"x": True}]),
    ("spec.suspend", [True, False, None], ["true", 0, 1]),
    ("spec.model.revision", ["main", "v1.0", "refs/pr/3", "8b1f3c0"], ["", "-x", "a b", "x" * 257, 1234567]),
    ("spec.model.credentialsSecret", ["hf-token", "a.b"], ["HF_TOKEN", "", "a/b", "-a"]),
    ("spec.model.cacheClaim", ["models"], ["Models", "a/b"]),
    ("spec.model.attention", ["SDPA", "Eager", "Flash"], ["sdpa", "flash", True]),
    ("spec.model.trustRemoteCode", [True], ["yes", 1]),
    (
        "spec.dataset.sources",
        [[{"uri": "s3://a/b"}] * 64],
        [[], [{"uri": "s3://a/b"}] * 65, {}, [None], ["s3://a/b"]],
    ),
    ("spec.dataset.systemPrompt", ["", "x" * 16384, "字" * 16384], ["x" * 16385, 5]),
    ("spec.dataset.maxLength", [1, 1048576], [0, -1, 1048577, "1", 1.5, True]),
    ("spec.dataset.template", ["Model", "AlpacaChinese", "DeepSeekR1"], ["alpaca", "", 3]),
    (
        "spec.dataset.split",
        [{"train": 1, "validation": 0, "test": 0}],
        [{"train": 0}, {"test": -1}, {"seed": -1}],
    ),
    ("spec.adapter.rank", [1, 512], [0, 513, "16", 16.5]),
    ("spec.adapter.alpha", [1, 100000], [0]),
    ("spec.adapter.dropout", ["0", "0.999", "0."], ["1", "1.0", "-0.1", 0.05, 0, "", "five", "5%"]),
    (
        "spec.adapter.targetModules",
        [["q_proj"], ["all-linear"], ["self_attn.q_proj"], ["a"] * 256],
        [[], ["a"] * 257, ["all-linear", "a"], ["a b"], "all-linear", [""], ["*"]],
    ),
    (
        "spec.training.epochs",
        ["3", "0.5", "1e1"],
        ["0", "0.0", "-1", 3, "1e999", "1e-999", "inf", "nan", "3 "],
    ),
    ("spec.training.maxSteps", [1, 2**31 - 1], [0, 2**31, "10"]),
    (
        "spec.training.learningRate",
        ["0.1", "1e-4", "2E-5", ".1", "1e-300"],
        ["0", "0.10001", "1", "1e-4 ", "+1e-4", "0x1p-4", "1_0e-4", "\u0661e-4", 1e-4, "0" * 33],
    ),
    ("spec.training.warmupRatio", ["0", "1"], ["1.01", "-0"]),
    ("spec.training.weightDecay", ["0", "0.01"], ["-0.01", 0]),
    ("spec.training.maxGradientNorm", ["0", "1", "0.3"], [1]),
    ("spec.training.globalBatchSize", [1], [0]),
    ("spec.training.seed", [0, 2**32 - 1], [-1, 2**32]),
    ("spec.checkpoint.steps", [1], [0]),
    ("spec.checkpoint.keep", [1], [0]),
    ("spec.workers.replicas", [1, 1000], [0, 1001]),
    ("spec.workers.gpusPerWorker", [0, 128], [-1, 129]),
    (
        "spec.workers.resourceName",
        ["amd.com/gpu", "gpu.example.com/a_B.c"],
        ["gpu", "/gpu", "AMD.com/gpu", "a/b/c"],
    ),
    (
        "spec.workers.sharedMemory",
        ["64Gi", "16G", 0, "0", "1.5Ti", "500m", "1e9", "1E"],
        ["64GB", "64 Gi", "-1Gi", -1, 1.5, "", "Gi", True, "1e999", "1ki"],
    ),
    ("spec.workers.nodeSelector", [{"a.b/c": "x"}], [{"a": "b c"}, {"a": 1}, {"a/b/c": "x"}, {"": "x"}, []]),
    ("spec.workers.supplementalGroups", [[], [0, 2**31 - 1]], [[-1], [2**31], ["44"]]),
    (
        "spec.workers.environment",
        [[{"name": "NCCL_DEBUG", "value": ""}]],
        [
            [{"name": "HSA_OVERRIDE_GFX_VERSION", "value": "9.4.2"}],
            [{"name": "MASTER_ADDR", "value": "x"}],
            [{"name": "HIP_VISIBLE_DEVICES", "value": "0"}],
            [{"name": "NCCL_DEBUG"}],
            [{"name": "NCCL_DEBUG", "value": 1}],
        ],
    ),
    ("spec.deepspeed.stage", ["Auto", 0, 1, 2, 3], ["3", 4, "auto", True, 2.5]),
    ("spec.deepspeed.config", [{}, {"a": {"b": [1, 2.5, None]}}], [[], "x"]),
    ("spec.output.merge", [True], ["true"]),
    (
        "spec.protection",
        [{"warnCelsius": 110}, {"warnCelsius": 40, "clearCelsius": 39}],
        [{"warnCelsius": 39, "clearCelsius": 30}, {"warnCelsius": 111}, {"action": "Stop"}],
    ),
    ("spec.retry.limit", [0], [-1]),
    ("spec.retry.hangSeconds", [1], [0]),
    ("spec.deadlineSeconds", [1, None], [0]),
    ("spec.ttlSecondsAfterFinished", [0], [-1, "1h"]),
    (
        "spec.cost",
        [{"currency": "CNY", "gpuHour": "0"}],
        [
            {"currency": "cny", "gpuHour": "1"},
            {"currency": "CNY"},
            {"gpuHour": "1"},
            {"currency": "CNY", "gpuHour": "-1"},
            {"currency": "CNY", "gpuHour": 15},
        ],
    ),
]

ALLOWED = [(path, value) for path, allowed, _ in LIMITS for value in allowed]
REFUSED = [(path, value) for path, _, refused in LIMITS for value in refused]


@pytest.mark.parametrize(("path", "value"), ALLOWED, ids=lambda part: str(part)[:40])
def test_allowed(path: str, value: Any, job_with: Callable[..., dict[str, Any]]) -> None:
    assert isinstance(parse(job_with((path, value))), FineTuneJob)


@pytest.mark.parametrize(("path", "value"), REFUSED, ids=lambda part: str(part)[:40])
def test_refused_at_its_path(path: str, value: Any, job_with: Callable[..., dict[str, Any]]) -> None:
    problems = parse(job_with((path, value)))
    assert isinstance(problems, list)
    assert all(spell(problem.path).startswith(path) for problem in problems)


@pytest.mark.parametrize(
    "path",
    ["apiVersion", "kind", "metadata", "spec", "spec.model", "spec.model.uri", "spec.dataset", "spec.output"],
)
def test_required(path: str, job_with: Callable[..., dict[str, Any]]) -> None:
    problems = parse(job_with((path, None)))
    assert isinstance(problems, list)
    assert [(spell(problem.path), problem.message) for problem in problems] == [(path, "is required")]
    assert problems[0].suggestion


def test_an_empty_block_is_an_absent_one(job_with: Callable[..., dict[str, Any]]) -> None:
    assert parse(job_with(("spec.training", None), ("spec.workers", None))) == parse(job_with())


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"spec": []}, {"spec": {"dataset": [1]}}])
def test_no_job_at_all(value: Any) -> None:
    assert isinstance(parse(value), list)


@pytest.mark.parametrize(("epochs", "bound"), [("1e999", "finite and above 0"), ("0", "above 0")])
def test_the_bound_that_is_named_is_the_one_missed(
    epochs: str, bound: str, job_with: Callable[..., dict[str, Any]]
) -> None:
    problems = parse(job_with(("spec.training.epochs", epochs)))
    assert isinstance(problems, list)
    assert [problem.message for problem in problems] == [f"is {epochs}, must be {bound}"]
