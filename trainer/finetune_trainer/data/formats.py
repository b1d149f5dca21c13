"""Formats: which one a file has, and what a record of it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from finetune_trainer.data import turns
from finetune_trainer.data.conversation import Conversation, Message, Passage, Row
from finetune_trainer.data.faults import FileFault, RowFault, SkippedRow
from finetune_trainer.data.fields import answer, names, text
from finetune_trainer.data.records import Record, type_name

Format = Literal["Alpaca", "ShareGPT", "Messages", "PromptCompletion", "Text"]


def read_row(record: Record, form: Format, before_input: str = "\n") -> Row:
    """Turn a record into a row.

    Args:
        record: the columns.
        form: what they mean.
        before_input: what stands between Alpaca's `instruction` and `input`.

    Raises:
        RowFault: a column is missing or of the wrong type.
        SkippedRow: there is nothing to learn in it.
    """
    if form == "Alpaca":
        return _alpaca(record, before_input)
    return _READERS[form](record)


def _alpaca(record: Record, before_input: str) -> Conversation:
    if "instruction" not in record:
        raise RowFault(f"the column instruction is missing; the row has {names(record)}")
    instruction = text(record["instruction"], "instruction")
    context = text(record.get("input"), "input")
    system = text(record.get("system"), "system")
    messages: list[Message] = [{"role": "system", "content": system}] if system.strip() else []
    messages += _history(record.get("history"))
    output = answer(record, "output")
    if not instruction.strip() and not context.strip():
        raise SkippedRow("instruction and input are empty: there is no question")
    if not instruction.strip():
        question = context
    else:
        question = instruction + (before_input + context if context.strip() else "")
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": output}]
    return Conversation(messages)


def _history(value: object) -> list[Message]:
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise RowFault(f"history is {type_name(value)}, not a list of pairs [question, answer]")
    messages: list[Message] = []
    for number, pair in enumerate(value, 1):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowFault(f"history, pair {number}: is not a pair [question, answer]")
        question, reply = (text(part, f"history, pair {number}") for part in pair)
        if not reply.strip():
            raise SkippedRow(f"history, pair {number}: the answer is empty")
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    return messages


def _prompt_completion(record: Record) -> Passage:
    name = next((key for key in ("completion", "response") if key in record), "completion")
    if "prompt" not in record:
        raise RowFault(f"the column prompt is missing; the row has {names(record)}")
    return Passage(text(record["prompt"], "prompt"), answer(record, name))


def _text(record: Record) -> Passage:
    return Passage("", answer(record, "text"))


_READERS: dict[Format, Callable[[Record], Row]] = {
    "ShareGPT": turns.sharegpt,
    "Messages": turns.messages,
    "PromptCompletion": _prompt_completion,
    "Text": _text,
}

_LISTS = {"messages", "conversations", "conversation", "history", "tools", "functions"}
_SHAPES = (
    "Alpaca (instruction, input, output), ShareGPT (conversations), Messages (messages), "
    "PromptCompletion (prompt, completion), Text (text)"
)


def detect(record: Record) -> Format:
    """Find out the format from the columns of a file's first record.

    Columns that say more win: a rendered copy in `text` beside Alpaca's columns is ignored.

    Raises:
        FileFault: the columns fit none.
    """
    column = next((key for key in ("messages", "conversations", "conversation") if key in record), None)
    if column is not None:
        turn_list = record[column]
        first = turn_list[0] if isinstance(turn_list, list) and turn_list else None
        keys = first.keys() if isinstance(first, dict) else ()
        if "from" in keys:
            return "ShareGPT"
        return "Messages" if column == "messages" or "role" in keys else "ShareGPT"
    if "instruction" in record and "output" in record:
        return "Alpaca"
    if "prompt" in record and ("completion" in record or "response" in record):
        return "PromptCompletion"
    if "instruction" in record:
        return "Alpaca"
    if "text" in record:
        return "Text"
    raise FileFault(f"no format has the columns {names(record)}; formats are {_SHAPES}")


def check_wrapped(record: Record) -> None:
    """Notice an object around the rows.

    Raises:
        FileFault: the record has none of the formats' columns, but a list of objects under some key.
    """
    known = _LISTS | {"instruction", "prompt", "text"}
    if known & record.keys():
        return
    for key, value in record.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            raise FileFault(
                f"is one object with the rows under the key '{key}' (its keys: {names(record)}); "
                f"save the list under '{key}' alone"
            )
