"""`finetune data` with a job file in place of flags."""

import os
import sys
from pathlib import Path

import pytest

from finetune_operator.cli import commands
from finetune_trainer.config import RunConfig

JOB = """\
apiVersion: finetune.dev/v1alpha1
kind: FineTuneJob
metadata: {name: small}
spec:
  model: {uri: "file://./model"}
  dataset: {sources: [{uri: "file://./rows.jsonl"}], maxLength: 64, template: Alpaca}
  output: {uri: "file://./out"}
"""


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have replaced this process."""
    calls: list[list[str]] = []

    def execute(_: str, arguments: list[str]) -> None:
        calls.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execute)
    return calls


def test_a_job_file_becomes_a_run(
    executed: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    with pytest.raises(SystemExit):
        commands.dispatch(["data", "job.yaml", "--rows", "2"])
    ((*command, flag, path, rows, count),) = executed
    assert command == [sys.executable, "-P", "-m", "finetune_trainer.data.cli"]
    assert (flag, rows, count) == ("--config", "--rows", "2")
    run = RunConfig.load(Path(path))
    assert run.dataset.sources[0].uri == f"file://{tmp_path}/rows.jsonl"
    assert (run.dataset.max_length, run.dataset.template) == (64, "Alpaca")


def test_rows_go_to_the_trainer_as_they_are(executed: list[list[str]]) -> None:
    with pytest.raises(SystemExit):
        commands.dispatch(["data", "rows.jsonl", "--template", "Alpaca"])
    assert executed == [
        [sys.executable, "-P", "-m", "finetune_trainer.data.cli", "rows.jsonl", "--template", "Alpaca"]
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["absent.yaml"], 2, "finetune data: absent.yaml: no such file or directory"),
        (["job.yaml", "other.yml"], 2, "takes one job file at a time"),
        (["broken.yaml"], 1, "broken.yaml:5: spec.model.uri"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    Path("broken.yaml").write_text(JOB.replace("file://./model", "model"))
    assert commands.dispatch(["data", *arguments]) == code
    assert says in capsys.readouterr().err
