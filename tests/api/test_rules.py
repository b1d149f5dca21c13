"""Rules between fields, each with a job just within and one just outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from finetune_operator.api import FineTuneJob, parse, rules, spell

BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"adapter": {"quantization": {}}}, "spec.adapter.quantization", "QLoRA"),
    ({"training": {"epochs": "1", "maxSteps": 1}}, "spec.training.maxSteps", "epochs"),
    ({"training": {"microBatchSize": 5}}, "spec.training.globalBatchSize", "write 30 or 35"),
    ({"training": {"microBatchSize": 64}}, "spec.training.globalBatchSize", "write 64"),
    (
        {
            "training": {"microBatchSize": 2, "globalBatchSize": 9},
            "workers": {"gpusPerWorker": 0, "replicas": 2},
        },
        "spec.training.globalBatchSize",
        "write 8 or 12",
    ),
    ({"adapter": {"targetModules": ["q_proj", "all-linear"]}}, "spec.adapter.targetModules", "all-linear"),
    ({"deepspeed": {"stage": 0, "offloadOptimizer": "CPU"}}, "spec.deepspeed.offloadOptimizer", "stage"),
    ({"deepspeed": {"stage": 2, "offloadParameters": "CPU"}}, "spec.deepspeed.offloadParameters", "stage: 3"),
    (
        {"deepspeed": {"config": {"zero_optimization": {"overlap_comm": True, "stage": 1}}}},
        "spec.deepspeed.config.zero_optimization.stage",
        "set deepspeed.stage instead",
    ),
    (
        {"deepspeed": {"config": {"bf16": {"enabled": True}}}},
        "spec.deepspeed.config.bf16",
        "training.precision",
    ),
    ({"protection": {"warnCelsius": 80}}, "spec.protection.clearCelsius", "by default"),
    ({"protection": {"warnCelsius": 85, "clearCelsius": 85}}, "spec.protection.clearCelsius", "warnCelsius"),
    ({"workers": {"tolerations": [{"value": "x"}]}}, "spec.workers.tolerations[0]", "Exists"),
    (
        {"workers": {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}},
        "spec.workers.tolerations[0].value",
        "operator: Equal",
    ),
    (
        {"workers": {"tolerations": [{"key": "a", "tolerationSeconds": 5}]}},
        "spec.workers.tolerations[0].tolerationSeconds",
        "NoExecute",
    ),
    (
        {
            "workers": {
                "environment": [{"name": "NCCL_DEBUG", "value": "a"}, {"name": "NCCL_DEBUG", "value": "b"}]
            }
        },
        "spec.workers.environment[1].name",
        "twice",
    ),
    (
        {"workers": {"resources": {"limits": {"amd.com/gpu": 8}}}},
        'spec.workers.resources.limits["amd.com/gpu"]',
        "gpusPerWorker",
    ),
    (
        {"workers": {"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}}},
        "spec.workers.resources.requests.cpu",
        "limit",
    ),
]
KEPT: list[dict[str, Any]] = [
    {"adapter": {"method": "QLoRA", "quantization": {}}},
    {"training": {"microBatchSize": 4}, "workers": {"replicas": 2, "gpusPerWorker": 4}},
    {"workers": {"gpusPerWorker": 3}},
    {"deepspeed": {"offloadOptimizer": "CPU", "offloadParameters": "CPU"}},
    {"deepspeed": {"stage": 1, "offloadOptimizer": "CPU"}},
    {"protection": {"warnCelsius": 81}},
    {"workers": {"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}]}},
    {"workers": {"resources": {"requests": {"memory": "64Gi"}, "limits": {"memory": 68719476736}}}},
    {"workers": {"resources": {"requests": {"memory": "1G"}, "limits": {"memory": "1Gi"}}}},
]


@pytest.mark.parametrize(("blocks", "path", "says"), BROKEN, ids=lambda part: str(part)[:50])
def test_broken(
    blocks: dict[str, Any], path: str, says: str, job_with: Callable[..., dict[str, Any]]
) -> None:
    problems = parse(job_with(*((f"spec.{name}", block) for name, block in blocks.items())))
    assert isinstance(problems, list)
    assert [spell(problem.path) for problem in problems] == [path]
    assert says in f"{problems[0].message} {problems[0].suggestion}"


@pytest.mark.parametrize("blocks", KEPT, ids=lambda part: str(part)[:50])
def test_kept(blocks: dict[str, Any], job_with: Callable[..., dict[str, Any]]) -> None:
    assert isinstance(
        parse(job_with(*((f"spec.{name}", block) for name, block in blocks.items()))), FineTuneJob
    )


def test_rules_speak_beside_other_faults(job_with: Callable[..., dict[str, Any]]) -> None:
    problems = parse(
        job_with(
            ("spec.training", {"epochs": "1", "maxSteps": 5, "learningRate": 1}),
            ("spec.model", None),
            ("spec.workers.replicas", 0),
        )
    )
    assert isinstance(problems, list)
    assert {spell(problem.path) for problem in problems} == {
        "spec.model",
        "spec.training.learningRate",
        "spec.training.maxSteps",
        "spec.workers.replicas",
    }


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("junk", [None, 1, True, "x", [], [1, None, {}], {"a": 1}, -5, 1.5], ids=repr)
def test_rules_bear_anything(rule: Callable[[dict[str, Any]], Any], junk: Any) -> None:
    blocks = ("adapter", "training", "workers", "deepspeed", "protection")
    fields = (
        "method quantization targetModules epochs maxSteps globalBatchSize microBatchSize replicas "
        "gpusPerWorker tolerations environment resources stage offloadOptimizer offloadParameters "
        "warnCelsius clearCelsius"
    )
    assert isinstance(list(rule(dict.fromkeys(blocks, junk))), list)
    assert isinstance(list(rule({block: dict.fromkeys(fields.split(), junk) for block in blocks})), list)
