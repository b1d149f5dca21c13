from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finetune_trainer.config import ExitReason
from finetune_trainer.data.cli import main
from tests.fixtures.folders import fill

ROWS = [{"instruction": f"Name {n}.", "input": "", "output": f"Boat {n}."} for n in range(12)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return (
        fill(tmp_path / "in", {"a.json": json.dumps([*ROWS, {"instruction": "x", "output": ""}])}) / "a.json"
    )


def ask(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_people_see_rows_and_the_verdict(rows: Path, tiny: Path, capsys: Any) -> None:
    assert ask(rows, "--model", tiny, "--rows", 1) == 0
    out = capsys.readouterr().out
    assert "⟦Boat 0.<|im_end|>⟧" in out
    assert "Boat 1" not in out
    for words in ("12 kept, 1 skipped", "train 10, validation 1, test 1", "Latin 12", "output is empty"):
        assert words in out


def test_json_has_every_row(rows: Path, tiny: Path, capsys: Any) -> None:
    assert ask(rows, "--model", tiny, "--json", "--split", "1:0:0") == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in document["rows"]] == list(range(1, 13))
    first = document["rows"][0]["segments"]
    assert "".join(part["text"] for part in first if part["trained"] and not part["special"]) == "Boat 0."
    assert document["skipped"] == [
        {"file": "a.json", "row": 13, "reason": "output is empty: there is no answer to learn"}
    ]
    assert document["report"]["splits"]["train"]["rows"] == 12
    assert document["error"] is None


def test_refusals_name_every_fault(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    lines = "".join(json.dumps({"instruction": "x", "output": [n]}) + "\n" for n in range(30))
    source = fill(tmp_path / "in", {"a.jsonl": lines}) / "a.jsonl"
    assert ask(source, "--model", tiny) == ExitReason.INVALID_DATASET.exit_code
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "finetune data: a.jsonl, row 1: output is a list, not text (and 29 more faults)"
    assert err[1].startswith("a.jsonl, row 2:")
    assert err[-1] == "and 10 more"
    assert ask(source, "--model", tiny, "--json") == ExitReason.INVALID_DATASET.exit_code
    document = json.loads(capsys.readouterr().out)
    assert len(document["faults"]) == 20
    assert document["error"]["faults"] == 30


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--split", "8:1"], 2, "8:1:1"),
        (["--rows", "some"], 2, "number of rows"),
        (["--max-length", "0"], 10, "--max-length"),
        (["--template", "Nobody"], 10, "Alpaca"),
        (["--config", "/nowhere/run.json"], 10, "/nowhere/run.json"),
    ],
)
def test_wrong_usage_is_one_line(
    rows: Path, tiny: Path, arguments: list[str], code: int, words: str, capsys: Any
) -> None:
    try:
        found = ask(rows, "--model", tiny, *arguments)
    except SystemExit as stop:
        found = int(str(stop.code))
    assert found == code
    assert words in capsys.readouterr().err


def test_a_missing_file_and_a_missing_model_are_told_apart(rows: Path, tiny: Path, capsys: Any) -> None:
    assert ask("/nowhere/a.json", "--model", tiny) == ExitReason.INVALID_DATASET.exit_code
    assert ask(rows, "--model", "/nowhere/model") == ExitReason.MODEL_UNAVAILABLE.exit_code
    assert all(line.startswith(("finetune data: ", "  ")) for line in capsys.readouterr().err.splitlines())


def test_a_run_json_in_place_of_flags(rows: Path, tiny: Path, tmp_path: Path, capsys: Any) -> None:
    config = {
        "name": "n",
        "uid": "u",
        "model": {"uri": f"file://{tiny}"},
        "dataset": {"sources": [{"uri": f"file://{rows}"}], "template": "Alpaca"},
        "output": {"uri": f"file://{tmp_path}"},
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert ask("--config", path, "--rows", 1) == 0
    assert "### Response:\n⟦Boat 0.<|im_end|>⟧" in capsys.readouterr().out


@pytest.mark.slow
def test_no_torch_is_imported(rows: Path, tiny: Path) -> None:
    code = (
        "import sys; from finetune_trainer.data.cli import main; import finetune_trainer.prepare.stage; "
        f"code = main([{str(rows)!r}, '--model', {str(tiny)!r}]); "
        "sys.exit(code or ('torch' in sys.modules) or ('transformers' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)


@pytest.mark.slow
def test_public_data(tiny: Path, capsys: Any) -> None:
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the public data sets in ../shared/data")
    for name, kept in (("alpaca_en_demo", 999), ("alpaca_zh_demo", 1000), ("glaive_toolcall_en_demo", 300)):
        assert ask(folder / f"{name}.json", "--model", tiny, "--json", "--rows", 0) == 0
        report = json.loads(capsys.readouterr().out)["report"]
        assert (report["rows"], report["skipped"]) == (kept, 0)
