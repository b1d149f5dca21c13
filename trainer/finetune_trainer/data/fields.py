"""Values of a record, checked: text where text is needed, with the column's name in every complaint."""

from __future__ import annotations

import json

from finetune_trainer.data.conversation import ToolCall
from finetune_trainer.data.faults import RowFault, SkippedRow
from finetune_trainer.data.records import Record, type_name


def text(value: object, name: str) -> str:
    """Text of a column; null is no text and a whole number is taken as written.

    Raises:
        RowFault: a list, an object, a fraction, or text that is not Unicode.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise RowFault(f"{name} holds half of a surrogate pair, which is not Unicode text") from None
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowFault(f"{name} is {type_name(value)}, not text")


def answer(record: Record, name: str) -> str:
    """Text that is to be learned.

    Raises:
        RowFault: the column is missing or is not text.
        SkippedRow: it is null or blank.
    """
    if name not in record:
        raise RowFault(f"the column {name} is missing; the row has {names(record)}")
    if record[name] is None:
        raise SkippedRow(f"{name} is null: there is no answer to learn")
    value = text(record[name], name)
    if not value.strip():
        raise SkippedRow(f"{name} is empty: there is no answer to learn")
    return value


def names(record: Record) -> str:
    """The columns of a record, for messages."""
    shown = ", ".join(list(record)[:12]) or "no columns"
    return shown + (", ..." if len(record) > 12 else "")


def json_text(value: str, name: str) -> object:
    """JSON inside of a text column.

    Raises:
        RowFault: it is not JSON.
    """
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise RowFault(f"{name} is not valid JSON: {value[:40]!r}") from None


def tools(value: object, name: str = "tools") -> list[dict[str, object]] | None:
    """Functions offered to the model: a list of objects, or the same as JSON text; empty means none.

    Functions without the wrapper `{"type": "function", "function": ...}` get it, as templates expect it.

    Raises:
        RowFault: something else.
    """
    if isinstance(value, str) and value.strip():
        value = json_text(value, name)
    if value is None or value == "" or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise RowFault(f"{name} is {type_name(value)}, not a list of functions")
    wrapped: list[dict[str, object]] = []
    for item in value:
        if not isinstance(item, dict):
            raise RowFault(f"{name} holds {type_name(item)}, not a function")
        wrapped.append(item if "function" in item else {"type": "function", "function": item})
    text(json.dumps(wrapped, ensure_ascii=False), name)
    return wrapped or None


def call(value: object, name: str) -> ToolCall:
    """One function call: an object with `name` and `arguments`, perhaps under `function`.

    Raises:
        RowFault: something else.
    """
    body = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(body, dict) or not isinstance(body.get("name"), str) or not body["name"]:
        raise RowFault(f"{name} is not a function call with a name and arguments")
    arguments = body.get("arguments", {})
    if isinstance(arguments, str):
        arguments = json_text(arguments, f"{name}: arguments") if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    text(json.dumps([body["name"], arguments], ensure_ascii=False), name)
    made: ToolCall = {"type": "function", "function": {"name": body["name"], "arguments": arguments}}
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        made["id"] = value["id"]
    return made
