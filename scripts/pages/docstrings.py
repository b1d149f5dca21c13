"""What classes say about themselves and their attributes."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap

from pydantic import BaseModel


def attributes(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below a model's fields, by the field's name; those of its bases count too.

    Python throws these strings away, and pydantic reads them only for models that ask for it: they are
    taken from the source.
    """
    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if issubclass(part, BaseModel) and part is not BaseModel:
            found |= _below(part)
    return found


def _below(model: type[BaseModel]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for field, text in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = one_line(str(text.value.value))
    return found


def summary(model: type[BaseModel]) -> str:
    """A class's docstring as one line, without what Python itself writes for classes that have none."""
    return one_line(model.__doc__ or "")


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())
