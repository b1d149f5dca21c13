"""docs/reference/events.md: the lines of `finetune run --json` and of every stage."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from finetune_trainer.config import Event, ExitReason
from scripts.pages.docstrings import attributes, summary
from scripts.pages.markdown import paragraphs, table

_NAMES = {str: "string", int: "whole number", float: "number", bool: "true or false"}
HEAD = ("Field", "Type", "Default", "Meaning")
_TAG = "event"
_INTRODUCTION = """
Every stage writes what happens as JSON, one object a line, and `finetune run --json` hands these lines on.
The field `event` says which of the kinds below a line is. A reader should pass over kinds and fields that
it does not know.

Every event has `worker`, a whole number, 0 by default. {worker}

Numbers that JSON cannot hold, an infinite gradient norm for one, are the strings `Infinity`, `-Infinity`
and `NaN`.
"""


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is ExitReason:
        return "[exit reason](exit-reasons.md)"
    if origin is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}s"
    if origin is dict:
        return f"object of {_type(arguments[1])}s"
    if arguments:
        return f"{_type(arguments[0])} or null"
    return _NAMES[annotation]


def _section(event: type[BaseModel]) -> list[str]:
    meanings = attributes(event)
    rows = []
    for name, info in event.model_fields.items():
        if name in (_TAG, "worker"):
            continue
        default = "" if info.is_required() else f"`{_json(info.default)}`"
        rows.append((f"`{name}`", _type(info.annotation), default, meanings.get(name, "")))
    title = event.model_fields[_TAG].default
    return [f"## {title}", "", *paragraphs(summary(event)), *table(HEAD, rows)]


def _json(value: object) -> str:
    return {"None": "null", "True": "true", "False": "false", "": '""'}.get(str(value), str(value))


def render() -> str:
    """The page without its note."""
    kinds = get_args(Event)
    lines = ["# Events", "", *paragraphs(_INTRODUCTION.format(worker=attributes(kinds[0])["worker"]))]
    for kind in kinds:
        lines += _section(kind)
    return "\n".join(lines)
