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
    """A part of the run begins: `prepare`, `rendezvous`, `load`, `train`, `evaluate`, `publish` ..."""

    event: Literal["stage"] = "stage"
    name: str
    """Which part."""
    message: str = ""
    """What it does, for people; may be empty."""


class Step(_Event):
    """Every `logSteps` optimizer steps, from rank 0."""

    event: Literal["step"] = "step"
    step: int
    """Optimizer steps done."""
    total_steps: int
    """Optimizer steps that the run consists of."""
    epoch: float
    """Passes over the training split so far."""
    loss: float
    """Mean over the trained tokens of the global batches since the last line, in nats."""
    learning_rate: float
    """Of this step."""
    gradient_norm: float
    """Of this step, before clipping."""
    memory_bytes: int
    """Peak of the fullest rank: device memory on a GPU, resident memory on a CPU."""
    tokens: int
    """Tokens seen so far by all ranks, trained or not."""
    tokens_per_second: float
    """Over all ranks, trained or not, since the last line."""
    eta_seconds: float
    """Seconds to the last step at that pace."""


class Evaluation(_Event):
    """Loss over a whole split, weighted by trained tokens."""

    event: Literal["evaluation"] = "evaluation"
    split: Literal["validation", "test"]
    """Which split."""
    step: int
    """Optimizer steps done before."""
    loss: float
    """Mean over the split's trained tokens, in nats."""
    tokens: int
    """Trained tokens of the split."""


class Checkpoint(_Event):
    """A checkpoint is complete in storage, or was resumed from."""

    event: Literal["checkpoint"] = "checkpoint"
    step: int
    """Optimizer steps done in it."""
    resumed: bool = False
    """The run continues from it; it is not new."""
    bytes: int = 0
    """Its size in storage."""
    seconds: float = 0.0
    """Time from the step's end until it was complete."""


class Prepared(_Event):
    """The prepare stage's verdict."""

    event: Literal["prepared"] = "prepared"
    rows: int
    """Rows that are used, in all splits."""
    tokens: int
    """Their tokens."""
    trained_token_share: float
    """Share of the tokens that are learned or evaluated, 0 to 1."""
    dropped: int = 0
    """Rows left out: too long, or with nothing to learn in them."""
    truncated: int = 0
    """Rows cut to `maxLength`."""
    splits: dict[str, int] = {}
    """Rows of each split."""
    reused: bool = False
    """An earlier attempt had prepared the same data."""


class Sample(_Event):
    """One held-out prompt, answered by the base model and by the published adapter."""

    event: Literal["sample"] = "sample"
    prompt: str
    """The question."""
    expected: str
    """The data's answer."""
    before: str
    """The base model's answer."""
    after: str
    """The answer with the adapter."""


class Warned(_Event):
    """Something a person should know though the run goes on."""

    event: Literal["warning"] = "warning"
    message: str
    """What it is, in one line."""
    hint: str = ""
    """What to do about it; may be empty."""


class Artifact(_Event):
    """The adapter is published and verified."""

    event: Literal["artifact"] = "artifact"
    uri: str
    """Where it is."""
    bytes: int
    """Size of all its files."""
    manifest_sha256: str
    """Digest of its `manifest.json`, which stands for all of it."""
    serve_command: str
    """A shell command that serves it with vLLM."""
    test_loss_before: float | None = None
    """Of the base model, in nats; null without a test split."""
    test_loss_after: float | None = None
    """With the adapter."""


class Outcome(_Event):
    """The last line of a rank or an agent; also the pod's termination message."""

    event: Literal["outcome"] = "outcome"
    reason: ExitReason
    """Why it ended."""
    message: str = ""
    """What happened and where, in one line."""
    hint: str = ""
    """What to do about it; may be empty."""
    step: int = 0
    """Last optimizer step known to be done."""
    rank: int | None = None
    """The rank that failed; null where it was none."""
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
