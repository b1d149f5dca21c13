"""The names of all fields, and which of them an unknown name was probably meant to be."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from finetune_operator.api.base import Part
from finetune_operator.api.carried_over import CARRIED_OVER
from finetune_operator.api.faults import Path
from finetune_operator.api.job import FineTuneJob

_SHOWN = 3
"""Candidates in one suggestion."""


def suggest(path: Path) -> str:
    """Say which field was probably meant by an unknown one; empty if nothing comes near.

    A name that differs only in case, `_` or `-` counts first, then names known from other trainers, then
    the same name elsewhere in the resource, then names that are spelled alike.
    """
    parent, name = _container(path), plain(str(path[-1]))
    here, everywhere = _fields().get(parent, {}), _fields()
    if name in here:
        return f"did you mean {here[name]}?"
    if name in CARRIED_OVER:
        return f"did you mean {CARRIED_OVER[name]}?"
    elsewhere = [
        f"{container}.{fields[name]}" if container else fields[name]
        for container, fields in everywhere.items()
        if name in fields and not container.startswith("metadata")
    ]
    if 0 < len(elsewhere) <= _SHOWN:
        return f"did you mean {' or '.join(elsewhere)}?"
    if near := get_close_matches(name, here, n=1, cutoff=0.6):
        return f"did you mean {here[near[0]]}?"
    spelled = {
        name: f"{container}.{field}" if container else field
        for container, fields in everywhere.items()
        for name, field in fields.items()
    }
    if near := get_close_matches(name, spelled, n=1, cutoff=0.8):
        return f"did you mean {spelled[near[0]]}?"
    return f"there are {', '.join(here.values())}" if here else ""


def plain(name: str) -> str:
    """A name without what people spell differently: case, `_` and `-`."""
    return name.lower().replace("_", "").replace("-", "")


def _container(path: Path) -> str:
    container = ""
    for step in path[:-1]:
        container += "[]" if isinstance(step, int) else f".{step}" if container else step
    return container


@cache
def _fields() -> dict[str, dict[str, str]]:
    """Per container (`spec.dataset.sources[]`) its fields: plain name to name."""
    found: dict[str, dict[str, str]] = {}
    _collect(FineTuneJob, "", found)
    return found


def _collect(part: type[Part], container: str, found: dict[str, dict[str, str]]) -> None:
    found[container] = {}
    for field in part.model_fields.values():
        name = field.alias or ""
        found[container][plain(name)] = name
        for inner, suffix in _parts(field.annotation):
            _collect(inner, (f"{container}.{name}" if container else name) + suffix, found)


def _parts(annotation: Any, suffix: str = "") -> list[tuple[type[Part], str]]:
    """Parts within an annotation, with `[]` for each list around them."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [(annotation, suffix)]
    deeper = f"{suffix}[]" if getattr(annotation, "__origin__", None) is list else suffix
    return [part for argument in get_args(annotation) for part in _parts(argument, deeper)]
