"""The last known state of a run, folded from its events; what `/progress` shows."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict

from finetune_trainer.config import (
    Artifact,
    Checkpoint,
    Evaluation,
    Event,
    Outcome,
    RunConfig,
    Stage,
    Step,
    Warned,
)


class Progress(BaseModel):
    """The newest event of each kind, and a few counts."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    name: str
    namespace: str
    uid: str
    attempt: int
    worker: int
    updated: float
    """Unix time in seconds of the newest event."""
    stage: Stage | None = None
    step: Step | None = None
    evaluations: dict[str, Evaluation] = {}
    """By split."""
    checkpoint: Checkpoint | None = None
    artifact: Artifact | None = None
    outcome: Outcome | None = None
    checkpoints: int = 0
    """Checkpoints written by this attempt."""
    warnings: int = 0

    @classmethod
    def begin(cls, config: RunConfig, worker: int, now: float) -> Self:
        """The state before any event; `now` in seconds of Unix time."""
        return cls(
            name=config.name,
            namespace=config.namespace,
            uid=config.uid,
            attempt=config.attempt,
            worker=worker,
            updated=now,
        )

    def after(self, event: Event, now: float) -> Self:
        """The state after one more event; `now` in seconds of Unix time."""
        change: dict[str, object] = {"updated": now}
        match event:
            case Stage():
                change["stage"] = event
            case Step():
                change["step"] = event
            case Evaluation():
                change["evaluations"] = self.evaluations | {event.split: event}
            case Checkpoint():
                change |= {"checkpoint": event, "checkpoints": self.checkpoints + (not event.resumed)}
            case Artifact():
                change["artifact"] = event
            case Outcome():
                change["outcome"] = event
            case Warned():
                change["warnings"] = self.warnings + 1
        return self.model_copy(update=change)

    @property
    def last_step(self) -> int:
        """The last optimizer step known to be done."""
        reached = self.step.step if self.step else 0
        return max(reached, self.checkpoint.step if self.checkpoint else 0)
