"""What the ranks left behind: `training.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from finetune_trainer.config import ExitReason, RunError

TRAINING = "training.json"


class TrainingResults(BaseModel):
    """The facts of a finished training; losses are means over trained tokens, in nats."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int
    total_steps: int
    test_loss_before: float | None = None
    """None where the test split is empty."""
    test_loss_after: float | None = None
    validation_loss: float | None = None
    train_loss: float | None = None
    """Of the last line that was logged."""
    tokens: int = 0
    """Seen by all ranks, trained or not."""
    seconds: float = 0.0
    world_size: int = 1
    zero_stage: int = 0
    peak_memory_bytes: int = 0
    versions: dict[str, str] = {}
    log: list[dict[str, Any]] = []
    """Step and evaluation events in order."""

    @classmethod
    def load(cls, work: Path) -> TrainingResults:
        """Read `training.json` of the ranks' work folder.

        Raises:
            RunError: Internal, it is missing or not what this version writes.
        """
        path = work / TRAINING
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            why = error.strerror or type(error).__name__
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise RunError(
            ExitReason.INTERNAL, f"the training's results cannot be read from {path}: {why}"
        ) from None
