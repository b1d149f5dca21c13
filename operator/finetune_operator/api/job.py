"""FineTuneJob as people write it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api.adapter import Adapter
from finetune_operator.api.base import INT32_MAX, Part
from finetune_operator.api.dataset import Dataset
from finetune_operator.api.metadata import Metadata
from finetune_operator.api.model import Model
from finetune_operator.api.operation import Protection, Retry, Seconds
from finetune_operator.api.output import Cost, Output
from finetune_operator.api.training import Checkpoint, DeepSpeed, Training
from finetune_operator.api.workers import Workers

GROUP = "finetune.dev"
API_VERSION = "finetune.dev/v1alpha1"
KIND = "FineTuneJob"


class Spec(Part):
    """What to train, on what, where, and where to put it."""

    suspend: bool = False
    """Hold the job: no pods, no GPUs; a running one takes a checkpoint first."""
    model: Model
    dataset: Dataset
    adapter: Adapter = Field(default_factory=Adapter.model_construct)
    training: Training = Field(default_factory=Training.model_construct)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint.model_construct)
    workers: Workers = Field(default_factory=Workers.model_construct)
    deepspeed: DeepSpeed = Field(default_factory=DeepSpeed.model_construct)
    output: Output
    protection: Protection = Field(default_factory=Protection.model_construct)
    retry: Retry = Field(default_factory=Retry.model_construct)
    deadline_seconds: Seconds | None = None
    """Seconds from the start after which the job fails; none if left out."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Seconds after the end at which pods and Jobs are deleted; the FineTuneJob stays."""
    cost: Cost | None = None


class FineTuneJob(Part):
    """One fine-tuning job, from rows to a proven adapter."""

    api_version: Literal["finetune.dev/v1alpha1"]
    kind: Literal["FineTuneJob"]
    metadata: Metadata
    spec: Spec
