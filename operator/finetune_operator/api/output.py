"""spec.output and spec.cost: where the adapter goes, and what the run is charged at."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from finetune_operator.api import patterns
from finetune_operator.api.base import Between, Fraction, ObjectName, Part
from finetune_operator.api.uris import OutputUri


class Output(Part):
    """Where prepared data, checkpoints and the adapter go."""

    uri: OutputUri
    """Folder of this job's runs: s3://, gs://, az:// or pvc://."""
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with the keys that writing needs."""
    merge: bool = False
    """Publish the base model with the adapter merged in, too."""


class Cost(Part):
    """The price of a GPU's hour; status.cost is computed from it."""

    currency: Annotated[str, Field(pattern=patterns.CURRENCY)]
    """ISO 4217 code."""
    gpu_hour: Annotated[Fraction, Between(at_least=0)]
    """Price of one GPU for one hour."""
