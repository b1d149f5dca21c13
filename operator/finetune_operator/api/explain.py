"""pydantic's errors in words for the person who wrote the job file."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from finetune_operator.api import patterns
from finetune_operator.api.faults import Path, Problem, printable, spell
from finetune_operator.api.fields import plain, suggest

REQUIRED = {
    "apiVersion": "write apiVersion: finetune.dev/v1alpha1",
    "kind": "write kind: FineTuneJob",
    "metadata": "write metadata: {name: my-job}",
    "metadata.name": "write name: my-job",
    "spec": "write spec: with model, dataset and output",
    "spec.model": "write model: {uri: hf://Qwen/Qwen2.5-7B-Instruct}",
    "spec.model.uri": "write uri: hf://Qwen/Qwen2.5-7B-Instruct",
    "spec.dataset": "write dataset: {sources: [{uri: s3://bucket/rows.jsonl}]}",
    "spec.dataset.sources": "write sources: [{uri: s3://bucket/rows.jsonl}]",
    "spec.dataset.sources[].uri": "write uri: s3://bucket/rows.jsonl",
    "spec.output": "write output: {uri: s3://bucket/folder}",
    "spec.output.uri": "write uri: s3://bucket/folder",
    "spec.cost.currency": "write currency: CNY",
    "spec.cost.gpuHour": 'write gpuHour: "15"',
    "spec.workers.environment[].name": "write name: and value:",
    "spec.workers.environment[].value": "write value: with the text itself; it cannot be read from elsewhere",
}

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "a string",
    "quantity_type": "a whole number or a string",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "greater_than": ("gt", "must be above {}"),
    "less_than": ("lt", "must be below {}"),
}
_SIZES = {
    "string_too_long": "has {actual} characters, at most {max_length} are allowed",
    "string_too_short": "is empty",
    "too_long": "has {actual_length} items, at most {max_length} are allowed",
    "too_short": "is empty, at least {min_length} is needed",
}
_WAYS_OUT = {
    ("too_long", "spec.dataset.sources"): "name a folder or prefix, which is one source",
    ("string_too_long", "metadata.name"): "shorten it: pods and host names are named after it",
    ("greater_than_equal", "spec.deadlineSeconds"): "leave the field out for no deadline",
    ("greater_than_equal", "spec.workers.replicas"): "to stop a job, write suspend: true",
    ("greater_than_equal", "spec.checkpoint.keep"): "the latest checkpoint is always kept",
}


def explain(error: ErrorDetails, text_of: Callable[[Path], str]) -> Problem:
    """Turn one of pydantic's errors into a problem.

    Args:
        error: with its input and context.
        text_of: a path's scalar as it is spelled in the file, or an empty string.
    """
    path = tuple(step for step in error["loc"] if step != "[key]")
    context: dict[str, Any] = error.get("ctx", {})
    value, kind = error["input"], error["type"]
    if kind == "own_check":
        return Problem(path, context["message"], context["suggestion"])
    if kind == "extra_forbidden":
        return Problem(path, "unknown field", suggest(path))
    if kind == "missing":
        return Problem(path, "is required", REQUIRED.get(re.sub(r"\[\d+\]", "[]", spell(path)), ""))
    if kind == "literal_error":
        return _not_one_of(path, value, context["expected"])
    if kind == "string_pattern_mismatch":
        return _misspelled(path, value, context["pattern"], key=error["loc"][-1] == "[key]")
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        message = f"is {printable(str(value))}, {words.format(context[bound])}"
        return Problem(path, message, _WAYS_OUT.get((kind, spell(path)), ""))
    if kind in _SIZES:
        actual = len(value) if isinstance(value, str) else None
        message = _SIZES[kind].format(**{"actual": actual, **context})
        return Problem(path, message, _WAYS_OUT.get((kind, spell(path)), ""))
    return _wrong_kind(path, value, kind, error["msg"], text_of(path))


def _not_one_of(path: Path, value: object, expected: str) -> Problem:
    choices = [quoted or bare for quoted, bare in re.findall(r"'([^']*)'|(\d+)", expected)]
    shown = [choice for choice in choices if choice]
    listed = f"must be one of {', '.join(shown)}" if len(shown) > 1 else f"must be {shown[0]}"
    if isinstance(value, (dict, list)):
        return Problem(path, f"is {_kind_of(value)}, {listed}")
    word = str(value).lower() if isinstance(value, bool) else str(value)
    meant = {plain(choice): choice for choice in shown}
    near = get_close_matches(plain(word), meant, n=1, cutoff=0.6)
    hint = f"did you mean {meant[near[0]]}?" if near else ""
    if near and word == meant[near[0]]:
        hint = f"write {word} without quotes"
    return Problem(path, f"{printable(word)!r} is not allowed here, {listed}", hint)


def _misspelled(path: Path, value: object, pattern: str, *, key: bool) -> Problem:
    explanation = patterns.EXPLANATIONS.get(pattern, f"must match {pattern}")
    text = str(value)
    suggestion = ""
    if pattern in (patterns.JOB_NAME, patterns.DNS_SUBDOMAIN, patterns.DNS_LABEL):
        spelled = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        suggestion = f"write {spelled}" if re.search(pattern, spelled) else ""
    if pattern == patterns.LABEL_VALUE:
        spelled = re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("-_.")
        suggestion = f"write {spelled}" if re.search(pattern, spelled) and spelled else ""
    if pattern == patterns.FRACTION and re.fullmatch(r"-[\d.]+", text):
        return Problem(path, f"is {printable(text)}, must not be negative")
    if pattern == patterns.RESOURCE_NAME and re.fullmatch(r"gpus?", text, re.IGNORECASE):
        suggestion = "write amd.com/gpu"
    if key:
        return Problem(path, f"the key {explanation}")
    if path[-1] == "credentialsSecret":
        # What stands here may be the key itself: it is not repeated.
        return Problem(path, explanation, "write the name of a Secret, not what is in it")
    return Problem(path, f"{printable(text)!r} {explanation}", suggestion)


def _wrong_kind(path: Path, value: object, kind: str, message: str, text: str) -> Problem:
    if kind not in _KINDS:
        return Problem(path, message[:1].lower() + message[1:])
    wanted = _KINDS[kind]
    problem = f"is {_kind_of(value)}, must be {wanted}"
    spelled = printable(text or str(value))
    suggestion = ""
    if kind in ("string_type", "quantity_type") and isinstance(value, (bool, int, float)):
        suggestion = f'write it in quotes: "{spelled}"'
    elif wanted == "a whole number" and isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        suggestion = f"write {spelled} without quotes"
    elif wanted == "true or false" and isinstance(value, str) and value.lower() in ("true", "false"):
        suggestion = f"write {value.lower()} without quotes"
    elif wanted == "a list" and isinstance(value, str):
        suggestion = f"write [{spelled}]"
    elif wanted == "a list" and isinstance(value, dict):
        suggestion = "begin each item with '- '"
    elif kind == "model_type" and isinstance(value, str) and path[-1:] in (("model",), ("output",)):
        suggestion = "write {uri: " + spelled + "}" if "@" not in value else ""
    return Problem(path, problem, suggestion)


def _kind_of(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a number"
    if isinstance(value, float):
        return "a fraction"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a mapping"
