"""The stored form of a job, and names that two packages have to agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from finetune_operator.api.dataset import Template
from finetune_operator.api.status import StoredFineTuneJob
from finetune_trainer.config import TEMPLATES

STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "phase": "Running",
    "conditions": [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "Training",
            "message": "step 120 of 1305",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
    ],
    "progress": {
        "step": 120,
        "totalSteps": 1305,
        "percent": 9,
        "loss": "1.2345",
        "evaluationLoss": "1.3",
        "learningRate": "9.8e-05",
        "tokensPerSecond": "5120",
        "etaSeconds": 4120,
    },
    "dataset": {"rows": 13920, "tokens": 2788010, "trainedTokenShare": "0.61", "dropped": 3, "truncated": 12},
    "gpus": {
        "count": 16,
        "hottestCelsius": 81,
        "powerWatts": 8900,
        "memoryPeakBytes": 2**37,
        "energyWattHours": "123.4",
    },
    "attempts": [
        {
            "number": 1,
            "startTime": "2026-01-01T00:00:00Z",
            "finishTime": "2026-01-01T01:00:00Z",
            "reason": "NodeLost",
            "message": "node-7 went away",
            "resumedFromStep": 0,
            "nodes": ["node-7", "node-8"],
        }
    ],
    "artifact": {
        "uri": "s3://adapters/x/0f1e/attempt-2/adapter",
        "manifestSha256": "ab" * 32,
        "bytes": 1,
        "serveCommand": "vllm serve ...",
    },
    "cost": {"gpuHours": "36.1", "amount": "541.5", "currency": "CNY"},
}


def test_the_whole_status_round_trips(job_with: Callable[..., dict[str, Any]]) -> None:
    job = StoredFineTuneJob.model_validate({**job_with(), "status": STATUS}, by_name=False)
    assert job.status.model_dump(by_alias=True, exclude_unset=True) == STATUS


def test_a_new_job_has_an_empty_status(job_with: Callable[..., dict[str, Any]]) -> None:
    job = StoredFineTuneJob.model_validate(job_with(), by_name=False)
    assert job.status.phase is None
    assert job.status.conditions == []


@pytest.mark.parametrize(
    "status", [{"phase": "Done"}, {"progress": {"percent": 101}}, {"progress": {"loss": 1.5}}], ids=str
)
def test_what_no_status_says(status: dict[str, Any], job_with: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        StoredFineTuneJob.model_validate({**job_with(), "status": status}, by_name=False)


def test_both_packages_know_the_same_templates() -> None:
    assert get_args(Template) == TEMPLATES
