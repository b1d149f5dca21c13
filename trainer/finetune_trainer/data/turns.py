"""ShareGPT and Messages: conversations given as a list of turns."""

from __future__ import annotations

from collections.abc import Callable

from finetune_trainer.data.conversation import Conversation, Message, Role
from finetune_trainer.data.faults import RowFault, SkippedRow
from finetune_trainer.data.fields import call, json_text, names, text, tools
from finetune_trainer.data.records import Record, type_name

_SHAREGPT_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool": "tool",
}
_CALLS = {"function_call", "tool_call"}
_MESSAGE_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def sharegpt(record: Record) -> Conversation:
    """Read `conversations` of `{from, value}`, with the columns `system` and `tools`.

    Raises:
        RowFault: a missing column, an unknown role, a value that is not text.
        SkippedRow: no turns, or no reply to learn.
    """
    system = text(record.get("system"), "system")
    start: list[Message] = [{"role": "system", "content": system}] if system.strip() else []
    return _conversation(record, ("conversations", "conversation", "messages"), start, _sharegpt_turn)


def messages(record: Record) -> Conversation:
    """Read `messages` of `{role, content}` as in OpenAI's API, with the columns `system` and `tools`.

    Raises:
        RowFault: a missing column, an unknown role, content that is not text.
        SkippedRow: no turns, content that is null, or no reply to learn.
    """
    system = text(record.get("system"), "system")
    start: list[Message] = [{"role": "system", "content": system}] if system.strip() else []
    return _conversation(record, ("messages", "conversations", "conversation"), start, _message)


def _conversation(
    record: Record,
    columns: tuple[str, ...],
    start: list[Message],
    read: Callable[[Record, str], Message],
) -> Conversation:
    name = next((column for column in columns if column in record), None)
    if name is None:
        raise RowFault(f"the column {columns[0]} is missing; the row has {names(record)}")
    value = record[name]
    if value is None or value == []:
        raise SkippedRow(f"{name} is empty: there are no turns")
    if not isinstance(value, list):
        raise RowFault(f"{name} is {type_name(value)}, not a list of turns")
    found = start
    muted: set[int] = set()
    for number, turn in enumerate(value, 1):
        where = f"{name}, turn {number}"
        if not isinstance(turn, dict):
            raise RowFault(f"{where}: is {type_name(turn)}, not an object")
        message = read(turn, where)
        if message["role"] == "system" and found and number == 1:
            # The column and the first turn both give a system prompt: the turn is the closer one.
            found.clear()
        if message["role"] == "assistant" and turn.get("weight") == 0:
            muted.add(len(found))
        found.append(message)
    offered = tools(record.get("tools") or record.get("functions"))
    replies = [place for place, message in enumerate(found) if message["role"] == "assistant"]
    if not replies:
        raise SkippedRow(f"{name} has no reply of the assistant: there is nothing to learn")
    if muted.issuperset(replies):
        raise SkippedRow(f"{name}: every reply has weight 0, so there is nothing to learn")
    return Conversation(found, offered, frozenset(muted))


def _role(turn: Record, key: str, roles: dict[str, Role], where: str) -> str:
    role = turn.get(key)
    if not isinstance(role, str):
        raise RowFault(f"{where}: {key} is {'missing' if key not in turn else type_name(role)}")
    if role not in roles:
        raise RowFault(f"{where}: unknown role '{role}'; roles are {', '.join(roles)}")
    return role


def _sharegpt_turn(turn: Record, where: str) -> Message:
    key = "from" if "from" in turn or "role" not in turn else "role"
    role = _role(turn, key, _SHAREGPT_ROLES, where)
    column = next((name for name in ("value", "content") if name in turn), None)
    if column is None:
        raise RowFault(f"{where}: value is missing; the turn has {names(turn)}")
    if turn[column] is None:
        raise SkippedRow(f"{where}: {column} is null")
    value = text(turn[column], f"{where}: {column}")
    if role in _CALLS:
        calls = json_text(value, f"{where}: {role}")
        given = calls if isinstance(calls, list) else [calls]
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [call(one, f"{where}: {role}") for one in given],
        }
    message: Message = {"role": _SHAREGPT_ROLES[role], "content": value}
    if message["role"] == "assistant" and not value.strip():
        raise SkippedRow(f"{where}: the reply is empty")
    return message


def _message(turn: Record, where: str) -> Message:
    key = "role" if "role" in turn or "from" not in turn else "from"
    role = _MESSAGE_ROLES[_role(turn, key, _MESSAGE_ROLES, where)]
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else None)
    if calls is not None and not isinstance(calls, list):
        raise RowFault(f"{where}: tool_calls is {type_name(calls)}, not a list")
    if "content" not in turn and not calls:
        raise RowFault(f"{where}: content is missing; the turn has {names(turn)}")
    if turn.get("content") is None and not calls:
        raise SkippedRow(f"{where}: content is null and there are no tool_calls")
    message: Message = {"role": role, "content": _content(turn.get("content"), where)}
    reasoning = text(turn.get("reasoning_content") or turn.get("reasoning"), f"{where}: reasoning_content")
    if calls:
        if role != "assistant":
            raise RowFault(f"{where}: tool_calls in a message of the role {role}")
        message["tool_calls"] = [call(one, f"{where}: tool_calls") for one in calls]
    elif role == "assistant" and not message["content"].strip():
        raise SkippedRow(f"{where}: the content of the reply is empty")
    if reasoning:
        message["reasoning_content"] = reasoning
    if isinstance(turn.get("name"), str):
        message["name"] = text(turn["name"], f"{where}: name")
    if isinstance(turn.get("tool_call_id"), str):
        message["tool_call_id"] = text(turn["tool_call_id"], f"{where}: tool_call_id")
    return message


def _content(value: object, where: str) -> str:
    if not isinstance(value, list):
        return text(value, f"{where}: content")
    parts: list[str] = []
    for part in value:
        if isinstance(part, str):
            parts.append(text(part, f"{where}: content"))
            continue
        if not isinstance(part, dict):
            raise RowFault(f"{where}: content has a part that is {type_name(part)}")
        kind = part.get("type", "text")
        if kind not in ("text", "input_text", "output_text"):
            raise RowFault(f"{where}: content has a part of the type {kind}; only text can be trained")
        parts.append(text(part.get("text"), f"{where}: content"))
    return "\n".join(parts)
