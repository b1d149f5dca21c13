"""Every case of tests/cases/datasets, by the rules of its README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.data.preview import Preview
from tests.data.building import Built, build
from tests.fixtures.smollm2 import smollm2

FOLDER = Path(__file__).parent.parent / "cases" / "datasets"
CASES = yaml.safe_load((FOLDER / "cases.yaml").read_text(encoding="utf-8"))
NAMES = {
    "template": "template",
    "systemPrompt": "system_prompt",
    "maxLength": "max_length",
    "overlong": "overlong",
    "loss": "loss",
    "split": "split",
}


def _id(case: dict[str, Any]) -> str:
    return "-".join(
        [case["file"], case["format"], *(str(value) for value in case.get("options", {}).values())]
    )


def _holds(says: list[Any], text: str) -> list[Any]:
    """The words that are absent."""
    low = text.lower()
    return [
        words
        for words in says
        if not any(word.lower() in low for word in (words if isinstance(words, list) else [words]))
    ]


def _whole(preview: Preview) -> str:
    return "".join(segment.text for example in preview.examples for segment in example)


def _learned(preview: Preview, wanted: bool) -> list[str]:
    """Stretches of text of one kind; control tokens part them."""
    stretches = [""]
    for example in preview.examples:
        for segment in example:
            if segment.special or segment.learned != wanted:
                stretches.append("")
            else:
                stretches[-1] += segment.text
    return [text for text in stretches if text]


def _check_kept(built: Built, expect: dict[str, Any]) -> None:
    report, previews = built.report, built.previews
    assert report.rows == expect["rows"] == len(previews)
    left_out = report.skipped + report.dropped
    assert left_out == expect.get("skipped", 0)
    assert [row.row for row in built.skipped] == expect.get("skipped_rows", [])
    for row in built.skipped:
        assert not _holds(expect.get("reason", []), row.reason)
    assert report.truncated == expect.get("truncated", 0)
    first, last = previews[0], previews[-1]
    if "turns" in expect:
        assert first.turns == expect["turns"]
    if "trained" in expect:
        assert len([text for text in _learned(first, True) if text.strip()]) == expect["trained"]
    for key, preview, wanted in (
        ("first_prompt", first, False),
        ("last_prompt", last, False),
        ("first_response", first, True),
        ("last_response", last, True),
    ):
        fragments = expect.get(key, [])
        for fragment in [fragments] if isinstance(fragments, str) else fragments:
            assert any(fragment in text for text in _learned(preview, wanted)), (key, fragment)
            assert wanted or not any(fragment in text for text in _learned(preview, True)), (key, fragment)
    if "first_response_is" in expect:
        assert "".join(_learned(first, True)).strip() == expect["first_response_is"]
    everything = [_whole(preview) for preview in previews]
    for fragment in expect.get("contains", []):
        assert any(fragment in text for text in everything), fragment
    for fragment in expect.get("nowhere", []):
        assert not any(fragment in text for text in everything), fragment
    if "splits" in expect:
        assert {name: split.rows for name, split in report.splits.items()} == expect["splits"]
    assert not _holds(expect.get("report", []), report.model_dump_json())
    _check_literal(built, expect.get("as_text", []))


def _check_literal(built: Built, spellings: list[str]) -> None:
    """A spelled token stands in a segment of text, and the arrays have as many tokens as control segments."""
    for spelling in spellings:
        segments = [s for preview in built.previews for example in preview.examples for s in example]
        assert any(spelling in segment.text for segment in segments if not segment.special)
        token = built.tokeniser.specials.get(spelling)
        meant = sum(segment.special and segment.text == spelling for segment in segments)
        examples = built.split()
        found = sum(int((examples.tokens(place) == token).sum()) for place in range(len(examples)))
        assert token is None or found == meant


def _check_refused(error: RunError, case: dict[str, Any], expect: dict[str, Any]) -> None:
    assert error.reason is ExitReason.INVALID_DATASET
    assert "\n" not in error.message
    assert case["file"] in error.message
    said = error.message.replace(case["file"], "") + error.hint
    assert not _holds(expect.get("says", []), said)
    if expect.get("row") is not None:
        assert f"row {expect['row']}:" in said


def _check(case: dict[str, Any], model: Path, folder: Path) -> None:
    options = {NAMES[name]: value for name, value in (CASES["defaults"] | case.get("options", {})).items()}
    outcomes = case["either"] if case["expect"] == "either" else [case]
    try:
        built = build([FOLDER / case["file"]], model, folder, form=case["format"], **options)
    except RunError as error:
        refusals = [outcome for outcome in outcomes if outcome["expect"] == "error"]
        if not refusals:
            raise
        _check_refused(error, case, refusals[0])
        return
    kept = [outcome for outcome in outcomes if outcome["expect"] == "ok"]
    assert kept, "should have been refused"
    problems = []
    for outcome in kept:
        try:
            _check_kept(built, outcome)
        except AssertionError as problem:
            problems.append(problem)
        else:
            return
    raise problems[0]


def _tiny_cases() -> list[Any]:
    long = ("late-string.jsonl",)
    return [
        pytest.param(case, id=_id(case), marks=[pytest.mark.slow] if case["file"] in long else [])
        for case in CASES["cases"]
    ]


@pytest.mark.parametrize("case", _tiny_cases())
def test_case_with_a_tiny_tokenizer(case: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    _check(case, tiny, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["cases"], ids=_id)
def test_case_with_a_real_tokenizer(case: dict[str, Any], tmp_path: Path) -> None:
    _check(case, smollm2(), tmp_path)
