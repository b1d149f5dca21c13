"""The stage as it is started: events on standard output, an exit code that says why, nothing half done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from finetune_trainer.config import Event, ExitReason, Outcome, Prepared, Warned, parse_event
from finetune_trainer.data.arrays import Examples
from finetune_trainer.prepare.stage import main
from finetune_trainer.storage import open_output
from tests.fixtures.folders import fill, tree
from tests.fixtures.tokenizers import byte_level

ROWS = "".join(json.dumps({"instruction": f"Name {n}.", "output": f"Boat {n}."}) + "\n" for n in range(20))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run.json in a folder that has all it names."""
    byte_level(tmp_path / "model")
    fill(tmp_path / "data", {"a.jsonl": ROWS})
    path = tmp_path / "run.json"
    path.write_text(
        json.dumps(
            {
                "name": "n",
                "uid": "run-1",
                "model": {"uri": f"file://{tmp_path}/model"},
                "dataset": {"sources": [{"uri": f"file://{tmp_path}/data"}]},
                "output": {"uri": f"file://{tmp_path}/output"},
            }
        ),
        encoding="utf-8",
    )
    return path


def change(config: Path, part: str, **values: object) -> None:
    document = json.loads(config.read_text(encoding="utf-8"))
    document[part].update(values)
    config.write_text(json.dumps(document), encoding="utf-8")


def run(config: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, list[Event]]:
    code = main(config, config.parent / "work")
    return code, [parse_event(line) for line in capfd.readouterr().out.splitlines()]


def outcome(events: list[Event]) -> Outcome:
    assert isinstance(events[-1], Outcome)
    return events[-1]


def prepared(events: list[Event]) -> Prepared:
    (found,) = [event for event in events if isinstance(event, Prepared)]
    return found


def test_arrays_are_published_once_and_reused(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, events = run(config, capfd)
    assert code == 0
    assert outcome(events).reason is ExitReason.SUCCEEDED
    first = prepared(events)
    assert (first.rows, first.splits, first.reused) == (20, {"train": 16, "validation": 2, "test": 2}, False)
    folder = config.parent / "output" / "run-1" / "prepared"
    assert tree(folder) == sorted(
        ["chat_template.jinja", "manifest.json", "report.json"]
        + [
            f"{split}/{name}.npy"
            for split in ("train", "validation", "test")
            for name in ("tokens", "trained", "offsets", "rows")
        ]
    )
    assert len(Examples(folder / "train")) == 16
    assert tree(config.parent / "work") == []
    _, events = run(config, capfd)
    assert prepared(events) == first.model_copy(update={"reused": True})


@pytest.mark.parametrize("what", ["rows", "template", "options", "model"])
def test_what_changed_is_prepared_anew(what: str, config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(config, capfd)
    if what == "rows":
        fill(config.parent / "data", {"b.jsonl": ROWS})
    elif what == "model":
        fill(
            config.parent / "model",
            {"chat_template.jinja": "{{ messages[0].content }}\n{{ messages[-1].content }}"},
        )
    else:
        change(config, "dataset", **({"template": "Alpaca"} if what == "template" else {"max_length": 30}))
    code, events = run(config, capfd)
    assert (code, prepared(events).reused) == (0, False)
    assert prepared(events).rows == (40 if what == "rows" else 20)


def test_bad_rows_end_as_invalid_dataset(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill(config.parent / "data", {"b.jsonl": '{"instruction": "x", "output": 1.5}\n{"instruction": "y"}\n'})
    code = main(config, config.parent / "work")
    out, err = capfd.readouterr()
    end = outcome([parse_event(line) for line in out.splitlines()])
    assert code == ExitReason.INVALID_DATASET.exit_code
    assert end.message == "b.jsonl, row 1: output is a number, not text (and 1 more fault)"
    assert "b.jsonl, row 2: the column output is missing" in err
    assert not (config.parent / "output" / "run-1").exists()


@pytest.mark.parametrize(
    ("part", "values", "reason", "words"),
    [
        ("model", {"uri": "file:///nowhere/model"}, ExitReason.MODEL_UNAVAILABLE, "/nowhere/model"),
        ("dataset", {"sources": [{"uri": "file:///nowhere/a"}]}, ExitReason.INVALID_DATASET, "/nowhere/a"),
        ("dataset", {"sources": []}, ExitReason.INVALID_CONFIGURATION, "sources"),
        ("output", {"uri": "file:///proc/nowhere"}, None, "/proc/nowhere"),
    ],
)
def test_reasons(
    part: str,
    values: dict[str, object],
    reason: ExitReason | None,
    words: str,
    config: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    change(config, part, **values)
    code, events = run(config, capfd)
    end = outcome(events)
    assert code == end.reason.exit_code
    assert end.reason is reason or (reason is None and end.reason.value.startswith("Storage"))
    assert words in end.message
    assert end.traceback == []


def test_a_model_without_a_template_needs_a_name(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (config.parent / "model" / "chat_template.jinja").unlink()
    _, events = run(config, capfd)
    assert outcome(events).reason is ExitReason.INVALID_CONFIGURATION
    assert "Alpaca" in outcome(events).hint
    change(config, "dataset", template="Alpaca")
    assert run(config, capfd)[0] == 0


def test_warnings_come_with_a_remedy(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill(config.parent / "data", {"a.jsonl": ROWS * 3})
    warnings = [event for event in run(config, capfd)[1] if isinstance(event, Warned)]
    assert any("duplicates" in warning.message for warning in warnings)
    assert all(warning.hint for warning in warnings)


def start(config: Path) -> subprocess.Popen[str]:
    work = config.parent / "work"
    command = [sys.executable, "-m", "finetune_trainer.prepare", "--config", str(config), "--work", str(work)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not any(work.rglob("tokens.spool")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_stage_leaves_nothing_that_looks_finished(sent: signal.Signals, config: Path) -> None:
    fill(config.parent / "data", {"a.jsonl": ROWS * 20_000})
    process = start(config)
    time.sleep(2)
    assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    os.kill(process.pid, sent)
    out, _ = process.communicate(timeout=30)
    if sent is not signal.SIGKILL:
        assert time.monotonic() - began < 10
        assert process.returncode == ExitReason.PREEMPTED.exit_code
        assert outcome([parse_event(line) for line in out.splitlines()]).reason is ExitReason.PREEMPTED
        assert tree(config.parent / "work") == []
    assert open_output(f"file://{config.parent}/output").manifest("run-1/prepared") is None
    assert len(workers) > 1
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    # The next start is not disturbed by what a killed one left.
    fill(config.parent / "data", {"a.jsonl": ROWS})
    process = start(config)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert prepared([parse_event(line) for line in out.splitlines()]).rows == 20
