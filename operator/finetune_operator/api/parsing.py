"""A FineTuneJob from plain values, with everything that is wrong with them at once."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from finetune_operator.api import rules, uris
from finetune_operator.api.faults import Path, Problem
from finetune_operator.api.job import FineTuneJob


def _no_text(path: Path) -> str:
    return ""


def parse(
    value: object,
    *,
    local: bool = False,
    strict: bool = True,
    text_of: Callable[[Path], str] = _no_text,
) -> FineTuneJob | list[Problem]:
    """Judge a job by its schema and the rules between its fields.

    Args:
        value: plain values, as from JSON. A `status` is not looked at: it is not the user's to write.
        local: whether `file://` addresses are allowed, as they are for a run on one machine.
        strict: whether unknown fields are faults; if not, they are dropped, as the API server does
            without strict field validation.
        text_of: a path's scalar as the user spelled it, for suggestions.

    Returns:
        The job, or all its problems: the fields' first, then those between fields.
    """
    if not isinstance(value, dict):
        return [Problem((), "is no FineTuneJob", "begin with apiVersion: finetune.dev/v1alpha1")]
    written = {key: part for key, part in value.items() if key != "status"}
    broken = rules.check(written.get("spec"))
    try:
        job = FineTuneJob.model_validate(
            written, extra=None if strict else "ignore", context={"local": local}, by_name=False
        )
    except ValidationError as error:
        from finetune_operator.api.explain import explain  # only needed for what is wrong

        found = [explain(detail, text_of) for detail in error.errors(include_url=False)]
        return found + broken
    return broken or job


def is_local(value: object) -> bool:
    """Whether a job can only be meant for one machine: its output is a `file://` folder."""
    spec = value.get("spec") if isinstance(value, dict) else None
    output = spec.get("output") if isinstance(spec, dict) else None
    return uris.is_file(output.get("uri") if isinstance(output, dict) else None)
