# ruff: noqa: RUF012 - pydantic copies a mutable default for each instance
"""metadata: the part of Kubernetes' ObjectMeta that a job file may carry."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from finetune_operator.api import patterns
from finetune_operator.api.base import Part
from finetune_operator.api.workers import LabelKey, LabelValue

NAME_LIMIT = 49
"""`<name>-prepare-xxxxx` and `<name>-999-999-xxxxx` are then 63 characters, the longest host name label."""

AnnotationKey = Annotated[str, Field(min_length=1, max_length=317, pattern=patterns.ANNOTATION_KEY)]


class Metadata(Part):
    """Name, labels, annotations, and what a server adds: an exported job is a job file too."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_LIMIT, pattern=patterns.JOB_NAME)]
    """The job's name; pods and host names are named after it."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=patterns.DNS_LABEL)] | None = None
    """Where the job is; that of the request if left out."""
    labels: dict[LabelKey, LabelValue] = {}
    """Short values to select jobs by."""
    annotations: dict[AnnotationKey, str] = {}
    """Any other text."""
    finalizers: list[str] = []
    owner_references: list[dict[str, Any]] = []
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    managed_fields: list[dict[str, Any]] = []
    self_link: str | None = None
