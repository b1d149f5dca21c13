"""What the manifest of a published adapter says beside its files: enough to load it anywhere."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from finetune_trainer.config import ExitReason, Quantization, RunError
from finetune_trainer.storage import Manifest


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class JobFacts(_Part):
    """The job that made it."""

    name: str
    namespace: str
    uid: str
    attempt: int


class BaseFacts(_Part):
    """The base model."""

    uri: str
    name: str
    revision: str | None = None
    commit: str | None = None


class DataFacts(_Part):
    """The data it was trained on."""

    sha256: str
    """Over the rows as the model saw them."""
    rows: int
    template: str
    system_prompt: str = ""
    chat: bool = True
    """Rows are conversations; otherwise text, and prompts go to the model without a template."""


class Losses(_Part):
    """Means over trained tokens, in nats."""

    test_before: float | None = None
    test_after: float | None = None
    validation: float | None = None
    train: float | None = None


class Metadata(_Part):
    """Stands in `manifest.json`."""

    kind: Literal["adapter", "merged"]
    job: JobFacts
    base_model: BaseFacts
    precision: Literal["BF16", "FP16", "FP32"]
    quantization: Quantization | None = None
    """How the base model's weights were held while training."""
    dataset: DataFacts
    losses: Losses = Losses()
    versions: dict[str, str] = {}
    published_at: str
    """UTC, ISO 8601: in the order of time as text."""

    @classmethod
    def of(cls, manifest: Manifest, uri: str) -> Metadata:
        """Read the manifest found at `uri`.

        Raises:
            RunError: InvalidConfiguration, it is not one of a published adapter.
        """
        try:
            return cls.model_validate(manifest.metadata)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise RunError(
                ExitReason.INVALID_CONFIGURATION,
                f"{uri} is not the manifest of an adapter of this version: {place}: {first['msg']}",
            ) from None
