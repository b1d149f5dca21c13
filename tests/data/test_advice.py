"""Warnings: each with what is wrong, in how many rows, and a remedy; none where all is well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.folders import fill
from tests.fixtures.tokenizers import CHATML, byte_level

LONG = "word " * 300
ONLY_TALK = CHATML.replace(
    "for message in messages", "for message in messages if message['role'] != 'system'"
)
NO_END = "{% for m in messages %}\n{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
NO_END += "{% if add_generation_prompt %}\nassistant: {% endif %}"
TOOL = {"name": "depth", "parameters": {}}


def talk(question: str, reply: str, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    if "system" in more:
        messages.insert(0, {"role": "system", "content": str(more.pop("system"))})
    return {"messages": messages, **more}


GOOD = [talk(f"Where is boat {n}?", f"At pier number {n}.") for n in range(20)]
SPLIT = {"train": 8, "validation": 1, "test": 1}


@pytest.mark.parametrize(
    ("rows", "options", "model", "words"),
    [
        ([talk(LONG + str(n), "Yes.") for n in range(20)], {}, {}, "of the tokens are trained: nearly all"),
        ([talk("?", LONG + str(n)) for n in range(20)], {}, {}, "hardly any prompt"),
        ([*GOOD, talk("?", LONG)], {"max_length": 64}, {}, "1 of 21 rows were cut to maxLength (64 tokens)"),
        ([*GOOD, talk("?", LONG)], {"max_length": 64, "overlong": "Drop"}, {}, "1 rows were dropped"),
        ([*GOOD, talk("?", " ")], {}, {}, "1 rows were skipped: messages, turn 2: the content of the reply"),
        ([talk("Where?", "Here.")] * 20, {}, {}, "4 rows of the validation and test splits are duplicates"),
        (GOOD[:2], {}, {}, "too few rows to split: all 2 go to train, and validation and test stay empty"),
        ([*GOOD, talk("Q", "A", system="S")], {}, {}, "1 of 21 conversations have a system prompt"),
        ([*GOOD, talk("Q", "A", tools=[TOOL])], {}, {}, "the template has no place for tools: in 1 rows"),
        (GOOD, {"template": "Llama3"}, {}, "the tokenizer has no <|start_header_id|>"),
        (GOOD, {}, {"template": NO_END}, "no end-of-turn: <|im_end|> was put"),
        (GOOD, {}, {"template": NO_END, "eos": None}, "the model will not stop"),
        (GOOD, {}, {"stops": [0]}, "replies end with <|im_end|>, but"),
        (GOOD, {"system_prompt": "S"}, {"template": ONLY_TALK}, "messages of the role system"),
        (
            GOOD,
            {},
            {"template": CHATML.replace("assistant\n' }}", "assistant\n<think>' }}")},
            "in 20 rows the template prompts for a reply with words",
        ),
    ],
)
def test_warnings(
    rows: list[dict[str, object]],
    options: dict[str, Any],
    model: dict[str, Any],
    words: str,
    prepared: Any,
    tmp_path: Path,
) -> None:
    source = fill(tmp_path / "in", {"a.jsonl": "\n".join(map(json.dumps, rows))})
    built = prepared(source, model=byte_level(tmp_path / "model", **model), split=SPLIT, **options)
    found = [warning for warning in built.report.warnings if words in warning.message]
    assert len(found) == 1, [warning.message for warning in built.report.warnings]
    assert found[0].hint


@pytest.mark.parametrize("options", [{}, {"loss": "All"}, {"loss": "LastTurn"}, {"template": "ChatML"}])
def test_no_warnings_where_all_is_well(options: dict[str, Any], prepared: Any, tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {"a.jsonl": "\n".join(map(json.dumps, GOOD))})
    assert prepared(source, split=SPLIT, **options).report.warnings == []
