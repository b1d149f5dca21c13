"""One record from its bytes: strict JSON, with a reason that a person can act on."""

from __future__ import annotations

import json
from typing import NoReturn

from finetune_trainer.data.faults import RowFault

Record = dict[str, object]


def type_name(value: object) -> str:
    """What people call the type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def _unique(pairs: list[tuple[str, object]]) -> Record:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowFault(f"the key {twice!r} stands there more than once")
    return record


def _constant(word: str) -> NoReturn:
    raise RowFault(f"not valid JSON: {word} is not a JSON value", syntax=True)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)


def parse(raw: bytes) -> Record:
    """Read one JSON object.

    Raises:
        RowFault: not UTF-8, not JSON, a key given twice, or not an object.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise RowFault(
            f"not UTF-8: byte 0x{byte:02x} at byte {error.start + 1}; save the file with the encoding UTF-8",
            syntax=True,
        ) from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowFault(_explain(text, error), syntax=True) from None
    except RecursionError:
        raise RowFault("not usable JSON: nested too deeply") from None
    except ValueError:
        raise RowFault("not usable JSON: a number with thousands of digits") from None
    if not isinstance(value, dict):
        raise RowFault(f"is {type_name(value)}, not an object with named columns")
    return value


def _explain(text: str, error: json.JSONDecodeError) -> str:
    where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
    found = text[error.pos : error.pos + 1]
    if error.msg.startswith("Invalid control character"):
        name = "a NUL byte" if found == "\0" else "a control character"
        return f"not valid JSON: {name} (U+{ord(found):04X}) inside a string at {where}"
    if found == "\0":
        return f"not valid JSON: a NUL byte (U+0000) at {where}"
    if error.msg.startswith("Unterminated string"):
        return f"not valid JSON: unterminated string from {where}; the row is cut short or lacks a quote"
    if error.pos >= len(text.rstrip()):
        return f"not valid JSON: the row is cut short at {where} ({error.msg.lower()})"
    if error.msg.startswith("Extra data"):
        return f"not valid JSON: more text after the end of the object at {where}"
    return f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]} at {where}"
