"""How small programs beside the agent begin and end: a configuration in, one outcome out."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from finetune_trainer.config import ExitReason, Outcome, RunConfig, RunError


def load_config(path: Path) -> RunConfig:
    """Read `run.json`.

    Raises:
        RunError: InvalidConfiguration, it cannot be read or is of another version.
    """
    try:
        return RunConfig.load(path)
    except OSError as error:
        raise RunError(ExitReason.INVALID_CONFIGURATION, f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"{path} is no run configuration of this version: {place}: {first['msg']}",
            "the operator and the image of the workers must be of one release",
        ) from error


def failure(error: RunError) -> Outcome:
    """The outcome that tells of an error."""
    return Outcome(reason=error.reason, message=error.message, hint=error.hint)
