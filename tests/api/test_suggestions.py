"""What an unknown field was probably meant to be."""

from __future__ import annotations

import pytest

from finetune_operator.api.carried_over import CARRIED_OVER
from finetune_operator.api.fields import _fields, plain, suggest

UNKNOWN: list[tuple[str, str]] = [
    ("spec.training.learning_rate", "did you mean learningRate?"),
    ("spec.training.LearningRate", "did you mean learningRate?"),
    ("spec.training.learnigRate", "did you mean learningRate?"),
    ("spec.learningRate", "did you mean spec.training.learningRate?"),
    ("spec.lora_rank", "did you mean spec.adapter.rank?"),
    ("spec.adapter.loraAlpha", "did you mean spec.adapter.alpha?"),
    ("spec.adapter.r", "did you mean spec.adapter.rank?"),
    ("spec.training.per_device_train_batch_size", "did you mean spec.training.microBatchSize?"),
    ("spec.num_train_epochs", "did you mean spec.training.epochs?"),
    ("cutoff_len", "did you mean spec.dataset.maxLength?"),
    ("spec.modle", "did you mean model?"),
    ("model", "did you mean spec.model?"),
    ("spec.training.seeds", "did you mean seed?"),
    ("spec.seed", "did you mean spec.dataset.split.seed or spec.training.seed?"),
    ("spec.dataset.sources.path", "there are uri, format, credentialsSecret"),
    ("spec.checkpoint.interval", "there are steps, keep"),
    ("spec.checkpoint.gpus_per_workers", "did you mean spec.workers.gpusPerWorker?"),
    ("spec.nowhere.at.all", ""),
]


@pytest.mark.parametrize(("path", "suggestion"), UNKNOWN)
def test_suggestion(path: str, suggestion: str) -> None:
    steps: list[str | int] = list(path.split("."))
    if "sources" in steps:
        steps.insert(steps.index("sources") + 1, 0)
    assert suggest(tuple(steps)) == suggestion


@pytest.mark.parametrize(("name", "target"), CARRIED_OVER.items())
def test_carried_over_names_lead_to_fields(name: str, target: str) -> None:
    container, field = target.rsplit(".", 1)
    assert field in _fields()[container].values()
    assert name == plain(name), "else it would never be found"
