"""Rows longer than maxLength."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_trainer.config import RunError
from finetune_trainer.data.build import InvalidDataError
from finetune_trainer.data.fit import prompt_limit
from tests.fixtures.folders import fill

LONG = " ".join(f"word{number}" for number in range(200))


@pytest.mark.parametrize(
    ("prompt", "reply", "limit", "kept"),
    [
        (10, 90, 100, 10),
        (10, 900, 100, 10),
        (60, 40, 100, 60),
        (60, 900, 100, 50),
        (900, 20, 100, 80),
        (900, 900, 101, 50),
        (5, 1, 3, 2),
    ],
)
def test_a_reply_has_half_of_the_length_at_least(prompt: int, reply: int, limit: int, kept: int) -> None:
    assert prompt_limit(prompt, reply, limit) == kept


def talk(*contents: str, system: str = "") -> dict[str, object]:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    return {"messages": messages}


@pytest.mark.parametrize(
    ("row", "options", "has", "learned", "gone"),
    [
        # The reply is cut at its end, and its end is not learned then.
        (talk("Tell.", LONG), {}, ["Tell.", "word0 word1"], ["word0 word1"], ["word199"]),
        # A long question is shortened in its middle: what it asks may stand at either end.
        (talk(LONG, "Yes."), {}, ["word0", "word199", " … "], ["Yes.<|im_end|>"], ["word100"]),
        # The oldest exchange goes first, the system prompt stays.
        (
            talk(LONG, "Old.", "Now?", "New.", system="Be brief."),
            {"loss": "LastTurn"},
            ["Be brief.", "Now?"],
            ["New.<|im_end|>"],
            ["word", "Old."],
        ),
        # Later turns are cut off as they come.
        (talk("Q?", "First.", LONG, "Second."), {}, ["Q?"], ["First.<|im_end|>"], ["Second.", "word"]),
        ({"prompt": LONG, "completion": " end"}, {}, ["word199"], [" end"], ["word0 "]),
        ({"text": LONG}, {}, ["word0"], ["ord0"], ["word199"]),
    ],
)
def test_truncation(
    row: dict[str, object],
    options: dict[str, Any],
    has: list[str],
    learned: list[str],
    gone: list[str],
    prepared: Any,
    tmp_path: Path,
) -> None:
    built = prepared(fill(tmp_path / "in", {"a.jsonl": json.dumps(row)}), max_length=80, **options)
    assert built.report.truncated == 1
    assert built.report.lengths.longest <= 80
    text, trained = built.text(), built.text(learned=True)
    assert all(words in text for words in has)
    assert all(words in trained for words in learned)
    assert not any(words in text for words in gone)
    (preview,) = built.previews
    assert preview.truncated
    assert "".join(segment.text for example in preview.examples for segment in example) == text


def test_no_half_characters(prepared: Any, tmp_path: Path) -> None:
    for length in range(30, 40):
        row = talk("Q?", "渡轮为什么晚点" * 20)
        built = prepared(fill(tmp_path / "in", {"a.jsonl": json.dumps(row)}), max_length=length)
        assert "\ufffd" not in built.text()
        assert built.split().lengths[0] > length - 4


def test_drop_and_fail(prepared: Any, tmp_path: Path) -> None:
    rows = [talk("Q?", "A."), talk("Q?", LONG), talk(LONG, "A.")]
    source = fill(tmp_path / "in", {"a.jsonl": "\n".join(map(json.dumps, rows))})
    built = prepared(source, max_length=80, overlong="Drop")
    assert (built.report.rows, built.report.dropped, built.report.truncated) == (1, 2, 0)
    assert [row.row for row in built.skipped] == [2, 3]
    with pytest.raises(InvalidDataError, match=r"a\.jsonl, row 2: \d+ tokens .* maxLength \(80\)") as caught:
        prepared(source, max_length=80, overlong="Fail")
    assert caught.value.faults.total == 2


def test_where_nothing_fits_the_dataset_is_refused(prepared: Any, tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {"a.jsonl": json.dumps(talk("Q?", "A."))})
    with pytest.raises(RunError, match=r"maxLength \(4 tokens\)"):
        prepared(source, max_length=4)
