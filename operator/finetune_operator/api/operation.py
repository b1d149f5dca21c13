"""spec.protection and spec.retry: heat, failures and waiting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api.base import INT32_MAX, Part

Seconds = Annotated[int, Field(ge=1, le=INT32_MAX)]


class Protection(Part):
    """What happens when a GPU gets hot."""

    warn_celsius: Annotated[int, Field(ge=40, le=110)] = 85
    """From this temperature of the hottest GPU on, the action is taken."""
    clear_celsius: Annotated[int, Field(ge=0, le=110)] = 80
    """Below this temperature it ends."""
    action: Literal["Warn", "Pace", "Pause"] = "Pace"
    """Pace waits between steps; Pause takes a checkpoint and gives the GPUs back."""
    max_pauses: Annotated[int, Field(ge=0, le=INT32_MAX)] = 5
    """Pauses after which the job fails."""


class Retry(Part):
    """How often a failed attempt is repeated, and how long silence is borne."""

    limit: Annotated[int, Field(ge=0, le=INT32_MAX)] = 3
    """New attempts after failures that the user did not cause."""
    hang_seconds: Seconds = 900
    """Seconds without progress in training after which an attempt counts as hung."""
    rendezvous_seconds: Seconds = 600
    """Seconds that workers wait for each other."""
