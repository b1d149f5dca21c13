"""spec.model: the base model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api import patterns
from finetune_operator.api.base import ObjectName, Part
from finetune_operator.api.uris import ModelUri


class Model(Part):
    """The base model that the adapter is trained for."""

    uri: ModelUri
    """Where the model is: hf://, modelscope://, s3://, gs://, az:// or pvc://."""
    revision: Annotated[str, Field(min_length=1, max_length=256, pattern=patterns.REVISION)] = "main"
    """Branch, tag or commit on a hub."""
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with the keys that reading the model needs."""
    attention: Literal["SDPA", "Eager", "Flash"] = "SDPA"
    """Attention implementation."""
    trust_remote_code: bool = False
    """Run code that the model brings along; refused unless the administrator allows it."""
    cache_claim: ObjectName | None = None
    """Claim in the same namespace that keeps downloaded models."""
