"""Job files to start from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parents[1] / "cases" / "jobs"

MINIMAL: dict[str, Any] = {
    "apiVersion": "finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "first-try"},
    "spec": {
        "model": {"uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"},
        "dataset": {"sources": [{"uri": "s3://training/hello.jsonl"}]},
        "output": {"uri": "s3://adapters/first-try"},
    },
}


@pytest.fixture
def jobs() -> Path:
    """The folder of manifests whose verdicts are agreed on."""
    return JOBS


@pytest.fixture
def job_with() -> Callable[..., dict[str, Any]]:
    """A minimal valid job with values set at dotted paths: `job_with(("spec.adapter.rank", 8))`."""

    def build(*changes: tuple[str, Any]) -> dict[str, Any]:
        job = copy.deepcopy(MINIMAL)
        for path, value in changes:
            *parents, last = path.split(".")
            place = job
            for step in parents:
                place = place.setdefault(step, {})
            place[last] = value
        return job

    return build
