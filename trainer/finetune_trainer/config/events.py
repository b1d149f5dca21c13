"""What ranks tell their agent and agents tell the world: one JSON object a line."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from finetune_trainer.config.outcomes import ExitReason


class _Event(BaseModel):
    # A gradient norm can be infinite under FP16; JSON has no word for that, and readers take the string.
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")

    worker: int = 0
    """Index of the worker (pod) that says it; the agent fills it in."""


class Stage(_Event):
    """A part of the run begins: `prepare`, `rendezvous`, `load`, `train`, `evaluate`, `verify`, `publish` ..."""

    event: Literal["stage"] = "stage"
    name: str
    message: str = ""


class Step(_Event):
    """Every `logSteps` optimizer steps, from rank 0."""

    event: Literal["step"] = "step"
    step: int
    total_steps: int
    epoch: float
    loss: float
    """Mean over the trained tokens of the global batches since the last line, in nats."""
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    memory_bytes: int
    """Peak of the fullest rank: device memory on a GPU, resident memory on a CPU."""
    tokens: int
    """Tokens seen so far by all ranks, trained or not."""
    tokens_per_second: float
    eta_seconds: float


class Evaluation(_Event):
    """Loss over a whole split, weighted by trained tokens."""

    event: Literal["evaluation"] = "evaluation"
    split: Literal["validation", "test"]
    step: int
    loss: float
    tokens: int
    """Trained tokens of the split."""


class Checkpoint(_Event):
    """A checkpoint is complete in storage, or was resumed from."""

    event: Literal["checkpoint"] = "checkpoint"
    step: int
    resumed: bool = False
    bytes: int = 0
    seconds: float = 0.0


class Prepared(_Event):
    """The prepare stage's verdict."""

    event: Literal["prepared"] = "prepared"
    rows: int
    tokens: int
    trained_token_share: float
    dropped: int = 0
    truncated: int = 0
    splits: dict[str, int] = {}
    reused: bool = False


class Sample(_Event):
    """One held-out prompt, answered by the base model and by the published adapter."""

    event: Literal["sample"] = "sample"
    prompt: str
    expected: str
    before: str
    after: str


class Warned(_Event):
    """Something a person should know though the run goes on."""

    event: Literal["warning"] = "warning"
    message: str
    hint: str = ""


class Artifact(_Event):
    """The adapter is published and verified."""

    event: Literal["artifact"] = "artifact"
    uri: str
    bytes: int
    manifest_sha256: str
    serve_command: str
    test_loss_before: float | None = None
    test_loss_after: float | None = None


class Outcome(_Event):
    """The last line of a rank or an agent; also the pod's termination message."""

    event: Literal["outcome"] = "outcome"
    reason: ExitReason
    message: str = ""
    hint: str = ""
    step: int = 0
    rank: int | None = None
    traceback: list[str] = []
    """Last lines of the failing rank's traceback."""


Event = Stage | Step | Evaluation | Checkpoint | Prepared | Sample | Warned | Artifact | Outcome
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def parse_event(line: str | bytes) -> Event:
    """Read one line of the event stream.

    Raises:
        pydantic.ValidationError: the line is not an event of this contract.
    """
    return _ADAPTER.validate_json(line)
