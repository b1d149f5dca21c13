"""docs/reference/job.md: every field of a job file, from the models that judge it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from finetune_operator.api import patterns, rules
from finetune_operator.api.base import INT32_MAX, Between, Checked, Part, Quantity
from finetune_operator.api.job import API_VERSION, KIND, Spec
from finetune_operator.api.metadata import Metadata
from scripts.pages.docstrings import attributes, one_line, summary
from scripts.pages.markdown import paragraphs, table

HEAD = ("Field", "Type", "Default", "Limits", "Meaning")
_QUANTITY = get_args(Quantity)[-1]
_INTRODUCTION = """
A job file holds a resource with `apiVersion: {version}`, `kind: {kind}`, `metadata` and `spec`. [Writing a
job](../writing-a-job.md) goes through the fields with the reasons. `finetune validate` checks all of this
and names each fault with its line.

A number in quotes is a string with digits, a point and perhaps an exponent, like `"0.05"` or `"1e-4"`:
custom resources have no fractions that every client keeps as they are. A field that is left out, or null,
has its default.
"""
_PLAIN = {str: "string", int: "whole number", bool: "true or false", Any: "any"}


@dataclass
class Kind:
    """What a value may be."""

    name: str
    limits: list[str] = field(default_factory=list)
    parts: list[tuple[str, type[Part]]] = field(default_factory=list)
    """Objects within it, each with what is put behind the path: `[]` in a list."""


def kind_of(annotation: Any, metadata: list[Any]) -> Kind:
    """Put an annotation with its constraints into words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(arguments[0], [*_flat(arguments[1:]), *metadata])
    if _QUANTITY in metadata:
        return Kind("quantity", ["like `64Gi`, `500m` or a whole number"])
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return kind_of(inner, metadata)
    if origin is Literal:
        return Kind("one of " + ", ".join(f"`{choice}`" if choice != "" else '`""`' for choice in arguments))
    if origin is list:
        item = kind_of(arguments[0], [])
        limits = [*_sizes(metadata, "items"), *(f"each {limit}" for limit in item.limits)]
        return Kind(f"list of {item.name}s", limits, [("[]" + path, part) for path, part in item.parts])
    if origin is dict:
        inner = kind_of(arguments[1], [])
        limits = [*_sizes(metadata, "entries"), *(f"each value {limit}" for limit in inner.limits)]
        return Kind(f"mapping of string to {inner.name}", limits)
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return Kind("object", [], [("", annotation)])
    if annotation is str and patterns.FRACTION in _patterns(metadata):
        return Kind("number in quotes", [str(limit) for limit in metadata if isinstance(limit, Between)])
    return Kind(_PLAIN[annotation], [*_bounds(metadata), *_spelling(metadata)])


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    """Constraints as pydantic keeps them: `Field(ge=1)` inside of a type is a FieldInfo of its own."""
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from one.metadata
        else:
            yield one


def _patterns(metadata: list[Any]) -> list[str]:
    return [pattern for one in metadata if isinstance(pattern := getattr(one, "pattern", None), str)]


def _sizes(metadata: list[Any], what: str) -> list[str]:
    least = next((one.min_length for one in metadata if isinstance(one, MinLen)), 0)
    most = next((one.max_length for one in metadata if isinstance(one, MaxLen)), None)
    if most is None:
        return [f"at least {least} {what}"] if least else []
    return [f"{least} to {most} {what}" if least else f"at most {most} {what}"]


def _bounds(metadata: list[Any]) -> list[str]:
    low: Any = None
    high: Any = None
    for one in metadata:
        match one:
            case Ge(ge=bound):
                low = bound
            case Le(le=bound):
                high = bound
            case Gt() | Lt() if not _is_vast(one):
                raise NotImplementedError(f"no words for {one}")
    # The largest 32-bit number and what 64 bits hold are no limits that a person meets.
    low = None if low is not None and low < -INT32_MAX else low
    high = None if high == INT32_MAX else high
    if low is not None and high is not None:
        return [f"{low} to {high}"]
    return [f"from {low}"] if low is not None else [f"to {high}"] if high is not None else []


def _is_vast(bound: Any) -> bool:
    return isinstance(bound, Lt) and bound.lt == 2**63


def _spelling(metadata: list[Any]) -> list[str]:
    sizes = _sizes(metadata, "characters")
    for pattern in _patterns(metadata):
        # A tolerance's key may be empty as well: its pattern begins with that.
        explained = patterns.EXPLANATIONS[pattern.removeprefix("^$|")]
        sizes.append(explained.partition(": ")[2] or explained.removeprefix("must be "))
    for one in metadata:
        if isinstance(one, Checked) and isinstance(one.check, functools.partial):
            schemes = ", ".join(f"`{scheme}://`" for scheme in one.check.keywords["schemes"])
            sizes.append(f"{schemes}; `file://` for `finetune run`")
    return sizes


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None or isinstance(value, Part):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`' if not value or not value[0].isalpha() else f"`{value}`"
    return f"`{value}`".replace("'", "")


def blocks(part: type[Part], path: str) -> Iterator[tuple[str, type[Part]]]:
    """A part and every part below it, each with its path, in the order in which they stand in a file."""
    yield path, part
    for name, info in part.model_fields.items():
        for suffix, inner in kind_of(info.annotation, info.metadata).parts:
            yield from blocks(inner, f"{path}.{info.alias or name}{suffix}")


def row(path: str, name: str, info: FieldInfo, meaning: str) -> tuple[str, ...]:
    """One field's line of the table."""
    kind = kind_of(info.annotation, info.metadata)
    inner = [part for _, part in kind.parts]
    text = meaning or (summary(inner[0]) if inner else "")
    link = f"{path}.{info.alias or name}{kind.parts[0][0]}" if inner else ""
    type_name = f"[{kind.name}](#{_anchor(link)})" if inner else kind.name
    return f"`{info.alias or name}`", type_name, _default(info), "; ".join(kind.limits), text


def _anchor(heading: str) -> str:
    """The anchor that renderers of Markdown make of a heading."""
    return "".join(sign for sign in heading.lower() if sign.isalnum() or sign in "-_")


def _section(path: str, part: type[Part]) -> list[str]:
    meanings = attributes(part)
    rows = [row(path, name, info, meanings.get(name, "")) for name, info in part.model_fields.items()]
    return [f"## {path}", "", *paragraphs(summary(part)), *table(HEAD, rows)]


def _metadata() -> list[str]:
    meanings = attributes(Metadata)
    fields = Metadata.model_fields
    rows = [row("metadata", name, fields[name], meaning) for name, meaning in meanings.items()]
    unused = ", ".join(f"`{info.alias}`" for name, info in fields.items() if name not in meanings)
    taken = f"Taken from files that a server exported, and not looked at: {unused}."
    return ["## metadata", "", *paragraphs(summary(Metadata)), *table(HEAD, rows), *paragraphs(taken)]


def _rules() -> list[str]:
    lines = ["## Rules between fields", ""]
    for rule in rules.RULES:
        name = rule.__name__.replace("_", " ")
        name = name.replace("qlora", "QLoRA")
        lines.append(f"- {name[0].upper()}{name[1:]}. {one_line(rule.__doc__ or '')}")
    return [*lines, ""]


def render() -> str:
    """The page without its note."""
    introduction = _INTRODUCTION.format(version=API_VERSION, kind=KIND)
    lines = ["# The fields of a job file", "", *paragraphs(introduction), *_metadata()]
    for path, part in blocks(Spec, "spec"):
        lines += _section(path, part)
    return "\n".join([*lines, *_rules()])
