"""What `finetune run` learns about the machine and the output before it starts anything."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Survey(BaseModel):
    """The one line that `python -m finetune_trainer.worker.survey` prints when the run can begin."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    gpus: int
    """GPUs that processes on this machine may open."""
    published_attempt: int | None = None
    """The newest attempt of this run whose adapter is published already."""
    published_uri: str = ""
    """Where that adapter lies."""
    published_bytes: int = 0
