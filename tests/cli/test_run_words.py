"""What `finetune run` says, as pure text."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from finetune_operator.cli.run.conduct import worker_environment
from finetune_operator.cli.run.display import Live, Machine, Plain, choose
from finetune_operator.cli.run.summary import Findings, failure, place, stopped, success
from finetune_operator.cli.run.words import duration, line, program, size
from finetune_trainer.config import (
    Artifact,
    Checkpoint,
    Dataset,
    Evaluation,
    Event,
    ExitReason,
    Model,
    Outcome,
    Output,
    Prepared,
    RunConfig,
    Sample,
    Source,
    Stage,
    Step,
    Warned,
    Workers,
    parse_event,
)

STEP = Step(
    step=40,
    total_steps=160,
    epoch=1.0,
    loss=1.2341,
    learning_rate=9.8e-5,
    gradient_norm=0.512,
    memory_bytes=2_140_000_000,
    tokens=9000,
    tokens_per_second=231.4,
    eta_seconds=72.4,
)
ARTIFACT = Artifact(
    uri="file:///out/my%20bot/adapter", bytes=4_700_000, manifest_sha256="0", serve_command=""
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (100_000, "100 kB"),
        (999_600, "1.0 MB"),
        (2_140_000_000, "2.1 GB"),
        (3 * 10**15, "3000 TB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.4, "59s"), (72.4, "1m 12s"), (3600, "1h 00m"), (7384, "2h 03m"), (90000, "1d 01h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (STEP, "step 40/160  loss 1.234  lr 9.8e-05  grad 0.51  mem 2.1 GB  231 tok/s  ETA 1m 12s"),
        (Stage(name="load"), "load"),
        (Stage(name="load", message="BF16"), "load: BF16"),
        (
            Evaluation(split="validation", step=40, loss=1.5, tokens=900),
            "validation loss 1.500 at step 40 (900 tokens)",
        ),
        (Checkpoint(step=20, resumed=True), "continuing from the checkpoint of step 20"),
        (Checkpoint(step=40, bytes=1500, seconds=0.25), "checkpoint of step 40 (1.5 kB in 0.2s)"),
        (
            Prepared(rows=9, tokens=8, trained_token_share=0.614, dropped=1, truncated=2, reused=True),
            "data: 9 rows; 8 tokens, 61% of them trained; 1 dropped; 2 truncated; prepared by an earlier run",
        ),
        (Warned(message="careful", hint="do this"), "warning: careful (do this)"),
        (Warned(message="red\x1b[31m\nalert\x07"), "warning: red\ufffd[31m alert\ufffd"),
        (ARTIFACT, ""),
    ],
)
def test_line(event: Event, text: str) -> None:
    assert line(event) == text


def test_success_in_full() -> None:
    findings = Findings()
    for event in (
        Checkpoint(step=160),
        Sample(prompt="x" * 100, expected="e", before="b", after="a"),
        Sample(prompt="what's\nup?", expected="e", before="\x1b]0;b", after="a"),
        ARTIFACT.model_copy(update={"test_loss_before": 4.0, "test_loss_after": 0.5}),
    ):
        findings.note(event)
    lines = success(findings)
    assert lines[0] == "test loss   4.000 before, 0.500 after (8.0 times lower)"
    assert lines[1] == "held out    2 questions that were not trained"
    assert "  before    \ufffd]0;b" in lines
    assert lines[-3:] == [
        "checkpoint  step 160",
        "adapter     /out/my bot/adapter (4.7 MB)",
        """next        finetune try '/out/my bot/adapter' 'what'"'"'s up?'""",
    ]


def test_success_without_a_test_split() -> None:
    findings = Findings()
    findings.note(ARTIFACT)
    assert success(findings)[0].startswith("adapter")
    assert success(findings)[-1].endswith("'your question'")


@pytest.mark.parametrize(
    ("before", "after", "factor"), [(1.0, 2.0, ""), (1.0, 0.0, ""), (3.0, 1.5, " (2.0 times lower)")]
)
def test_a_factor_only_where_the_loss_fell(before: float, after: float, factor: str) -> None:
    findings = Findings()
    findings.note(ARTIFACT.model_copy(update={"test_loss_before": before, "test_loss_after": after}))
    assert success(findings)[0] == f"test loss   {before:.3f} before, {after:.3f} after{factor}"


@pytest.mark.parametrize(
    ("uri", "text"), [("file:///a/b%20c", "/a/b c"), ("s3://bucket/key", "s3://bucket/key")]
)
def test_place(uri: str, text: str) -> None:
    assert place(uri) == text


def test_failure() -> None:
    outcome = Outcome(reason=ExitReason.OUT_OF_MEMORY, message="full", hint="less", traceback=["one", "two"])
    brief = failure(outcome, Path("/logs"))
    assert brief == [
        "finetune run: OutOfMemory: full",
        "  hint: less",
        "  logs: /logs (-v shows the traceback)",
    ]
    assert failure(outcome, Path("/logs"), verbose=True)[2:] == ["  | one", "  | two", "  logs: /logs"]
    bare = Outcome(reason=ExitReason.PREFLIGHT_FAILED, message="no")
    assert failure(bare, None) == ["finetune run: PreflightFailed: no"]


@pytest.mark.parametrize(
    ("reason", "goes_on"), [(ExitReason.INTERNAL, True), (ExitReason.OUT_OF_MEMORY, False)]
)
def test_a_failure_that_may_not_come_again_can_be_continued(reason: ExitReason, goes_on: bool) -> None:
    lines = failure(
        Outcome(reason=reason, message="gone"), Path("/logs"), Findings(checkpoint=Checkpoint(step=10))
    )
    assert ("  next: the same command continues from step 10" in lines) is goes_on


@pytest.mark.parametrize(
    ("step", "checkpoint", "text"),
    [
        (41, 41, "stopped at step 41; run the same command to continue from step 41"),
        (41, 20, "stopped at step 41; run the same command to continue from step 20"),
        (5, None, "stopped at step 5; run the same command to begin again"),
        (0, None, "stopped before the first step; run the same command to begin again"),
    ],
)
def test_stopped(step: int, checkpoint: int | None, text: str) -> None:
    findings = Findings(checkpoint=None if checkpoint is None else Checkpoint(step=checkpoint))
    outcome = Outcome(reason=ExitReason.PREEMPTED, step=step)
    assert stopped(outcome, findings) == [f"finetune run: Preempted: {text}"]


def test_machines_get_events_and_nothing_else() -> None:
    out, notes = io.StringIO(), io.StringIO()
    display = choose(out, notes, json=True)
    assert isinstance(display, Machine)
    display.event(STEP)
    display.note("stopping")
    assert parse_event(out.getvalue()) == STEP
    assert notes.getvalue() == "stopping\n"


def test_a_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    display = choose(out, io.StringIO(), json=False)
    assert isinstance(display, Plain)
    display.event(STEP)
    display.event(ARTIFACT)
    display.event(Stage(name="load", worker=1))
    assert out.getvalue() == line(STEP) + "\n"


def test_a_terminal_keeps_what_matters_unbroken() -> None:
    out = io.StringIO()
    display = Live(Console(file=out, force_terminal=True, width=40, color_system=None))
    display.event(Stage(name="load", message="[red]not markup"))
    display.event(STEP)
    display.event(Warned(message="careful " * 10))
    display.event(Evaluation(split="test", step=40, loss=1.5, tokens=900))
    display.event(ARTIFACT)
    display.close()
    text = out.getvalue()
    assert "warning: " + " ".join(["careful"] * 10) in text
    assert "test loss 1.500 at step 40 (900 tokens)" in text
    assert "step 40/160" not in text


def shared(replicas: int, gpus: int) -> RunConfig:
    return RunConfig(
        name="demo",
        uid="1",
        model=Model(uri="file:///m"),
        dataset=Dataset(sources=[Source(uri="file:///d")]),
        workers=Workers(replicas=replicas, gpus_per_worker=gpus),
        output=Output(uri="file:///o"),
    )


@pytest.mark.parametrize(
    ("replicas", "gpus", "name", "expected"),
    [
        (1, 0, "worker-0", {}),
        (2, 0, "prepare", {}),
        (2, 0, "worker-1", {"OMP_NUM_THREADS": "3"}),
        (100, 0, "worker-1", {"OMP_NUM_THREADS": "1"}),
        (1, 8, "worker-0", {}),
        (2, 4, "worker-1", {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
    ],
)
def test_workers_share_the_machine(
    replicas: int, gpus: int, name: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    config = shared(replicas, gpus)
    assert worker_environment(config, name) == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in worker_environment(config, name)


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_workers_share_the_gpus_that_a_person_has_chosen(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(variable, "2, 3,6,7")
    assert worker_environment(shared(2, 2), "worker-1") == {variable: "6,7"}


@pytest.mark.parametrize(
    ("started", "on_path", "typed"),
    [
        ("/home/ann/clone/.venv/bin/finetune", False, ".venv/bin/finetune"),
        ("/opt/my tools/finetune", False, "'/opt/my tools/finetune'"),
        ("/usr/lib/cli/__main__.py", False, "/usr/bin/python3 -m finetune_operator.cli"),
        ("/home/ann/clone/.venv/bin/finetune", True, "finetune"),
    ],
)
def test_program(started: str, on_path: bool, typed: str) -> None:
    folder = Path("/home/ann/clone")
    assert program(Path(started), folder, on_path=on_path, python="/usr/bin/python3") == typed
