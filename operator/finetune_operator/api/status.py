# ruff: noqa: RUF012 - pydantic copies a mutable default for each instance
"""FineTuneJob as the API server stores it: what people wrote, and the status that the operator writes.

Job files do without this module; fractions are strings here too.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api.base import Part
from finetune_operator.api.job import FineTuneJob

Phase = Literal[
    "Pending",
    "Preparing",
    "Queued",
    "Starting",
    "Running",
    "Paused",
    "Suspended",
    "Succeeded",
    "Failed",
]

Number = Annotated[str, Field(max_length=32)]
"""A measured number, written as a string."""
Message = Annotated[str, Field(max_length=32768)]
Reason = Annotated[
    str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
]
"""CamelCase, for machines."""
Timestamp = Annotated[str, Field(max_length=64)]
"""RFC 3339, in UTC."""


class Condition(Part):
    """One condition in Kubernetes' usual form; `lastTransitionTime` moves only when `status` does."""

    type: Literal["Ready", "Reconciling", "Stalled", "Succeeded", "Suspended", "Prepared", "Throttled"]
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: Message = ""
    last_transition_time: Timestamp
    observed_generation: int | None = None


class Progress(Part):
    """Where training stands; written at a bounded rate."""

    step: int = 0
    total_steps: int | None = None
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    loss: Number | None = None
    """Mean over the trained tokens, in nats."""
    evaluation_loss: Number | None = None
    learning_rate: Number | None = None
    tokens_per_second: Number | None = None
    eta_seconds: int | None = None


class PreparedDataset(Part):
    """What the prepare stage found in the rows."""

    rows: int
    tokens: int
    trained_token_share: Number
    """0 to 1."""
    dropped: int = 0
    truncated: int = 0


class Gpus(Part):
    """Health of all GPUs of the running attempt."""

    count: int
    hottest_celsius: int | None = None
    power_watts: int | None = None
    memory_peak_bytes: int | None = None
    energy_watt_hours: Number | None = None


class Attempt(Part):
    """One try at training: a train Job from its creation to its end."""

    number: Annotated[int, Field(ge=1)]
    start_time: Timestamp | None = None
    finish_time: Timestamp | None = None
    reason: Reason | None = None
    """An exit reason of the trainer, or why the operator ended it; absent while it runs."""
    message: Message = ""
    resumed_from_step: int | None = None
    nodes: list[str] = []


class PublishedArtifact(Part):
    """The adapter that the last attempt published."""

    uri: str
    manifest_sha256: str | None = None
    bytes: int | None = None
    serve_command: str | None = None
    """A command that serves the adapter."""


class AccruedCost(Part):
    """What the job has cost so far, at the price in spec.cost."""

    gpu_hours: Number
    amount: Number
    currency: str


class Status(Part):
    """What the operator knows about a job."""

    observed_generation: int | None = None
    phase: Phase | None = None
    conditions: list[Condition] = []
    progress: Progress | None = None
    dataset: PreparedDataset | None = None
    gpus: Gpus | None = None
    attempts: list[Attempt] = []
    artifact: PublishedArtifact | None = None
    cost: AccruedCost | None = None


class StoredFineTuneJob(FineTuneJob):
    """A FineTuneJob with its status."""

    status: Status = Field(default_factory=Status)
