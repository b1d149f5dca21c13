"""`finetune validate` as people and machines see it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.cli import validate

JOBS = Path(__file__).parents[1] / "cases" / "jobs"
VERDICTS = {
    case["file"]: case["verdict"]
    for case in yaml.safe_load((JOBS / "cases.yaml").read_text("utf-8"))["create"]
}
VALID = (JOBS / "minimal.yaml").read_bytes()
MISSPELLED = VALID.replace(b"FineTuneJob", b"FinetuneJob")
SECRET = b"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("file", "verdict"), VERDICTS.items())
def test_the_verdict_is_the_clusters(file: str, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main([str(JOBS / file)]) == (0 if verdict == "accepted" else 1)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{JOBS / file}:")


SUMMARIES = {
    "minimal.yaml": "LoRA rank 16 on hf://Qwen/Qwen2.5-0.5B-Instruct, 1 worker x 1 GPU, global batch 32",
    "cpu.yaml": "LoRA rank 4 on hf://HuggingFaceTB/SmolLM2-135M-Instruct, 2 workers x CPU, global batch 8",
    "everything.yaml": "QLoRA rank 32 on hf://meta-llama/Meta-Llama-3-70B-Instruct, 2 workers x 8 GPUs, "
    "global batch 128",
}


@pytest.mark.parametrize(("file", "summary"), SUMMARIES.items())
def test_a_valid_job_is_summed_up(file: str, summary: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = yaml.safe_load((JOBS / file).read_text("utf-8"))["metadata"]["name"]
    assert validate.main([str(JOBS / file)]) == 0
    assert capsys.readouterr().out == f'{JOBS / file}: FineTuneJob "{name}" is valid ({summary})\n'


def test_all_faults_of_all_files_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.yaml").write_bytes(VALID.replace(b"spec:", b"spec:\n  suspend: 1\n  learningRate: x"))
    (folder / "b.yaml").write_bytes(VALID + b"---\n" + VALID.replace(b"first-try", b"Second"))
    assert validate.main(["a.yaml", "b.yaml"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a.yaml:6: spec.suspend: is a number, must be true or false",
        "a.yaml:7: spec.learningRate: unknown field; did you mean spec.training.learningRate?",
        'b.yaml:1: FineTuneJob "first-try" is valid '
        "(LoRA rank 16 on hf://Qwen/Qwen2.5-0.5B-Instruct, 1 worker x 1 GPU, global batch 32)",
        "b.yaml:17: metadata.name: 'Second' must be lower case letters, digits and '-', begin with a letter "
        "and not end with '-'; write second",
        "3 jobs: 1 valid, 2 with 3 faults",
    ]


FILES: list[tuple[dict[str, bytes], list[str], int, str]] = [
    ({"job.yaml": b""}, ["job.yaml"], 1, "job.yaml:1: is empty"),
    ({"job.yaml": b"a: b: c"}, ["job.yaml"], 1, "job.yaml:1: is not YAML"),
    ({"job.yaml": b"[1]"}, ["job.yaml"], 1, "job.yaml:1: is no FineTuneJob"),
    ({"job.yaml": SECRET}, ["job.yaml"], 1, "job.yaml:1: kind: is v1 Secret, not a FineTuneJob"),
    ({"job.yaml": MISSPELLED}, ["job.yaml"], 1, "did you mean FineTuneJob?"),
    ({"job.yaml": SECRET + b"---\n" + VALID}, ["job.yaml"], 0, "is valid"),
    ({"job.yml": VALID}, ["job.yaml"], 2, "job.yaml: no such file or directory; did you mean job.yml?"),
    ({}, ["nowhere/job.yaml"], 2, "no such file or directory"),
    ({"a.yaml": VALID}, ["a.yaml", "b.yaml"], 2, "is valid"),
    ({"d/a.yaml": VALID, "d/e/b.json": b"{}", "d/.git/c.yaml": b"x", "d/x.txt": b""}, ["d"], 0, "d/a.yaml: "),
    ({"d/a.yaml": VALID, "d/values.yaml": b"replicas: 1", "d/s.yaml": SECRET}, ["d"], 0, "is valid"),
    ({"d/a.yaml": VALID, "d/b.yaml": b"spec: {}"}, ["d"], 1, "d/b.yaml:1: apiVersion: is required"),
    ({"d/s.yaml": SECRET}, ["d"], 2, "d: holds no job file"),
    ({"job.yaml": VALID}, ["job.yaml", "job.yaml"], 0, "is valid"),
]


@pytest.mark.parametrize(("files", "arguments", "code", "says"), FILES, ids=lambda part: str(part)[:60])
def test_files(
    files: dict[str, bytes],
    arguments: list[str],
    code: int,
    says: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert validate.main(arguments) == code
    assert says in "".join(capsys.readouterr())


def test_one_unreadable_file_does_not_hide_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "a.yaml").symlink_to("nowhere")
    (folder / "d" / "b.yaml").write_bytes(VALID)
    assert validate.main(["d"]) == 2
    out, err = capsys.readouterr()
    assert "d/b.yaml: FineTuneJob" in out
    assert "finetune validate: d/a.yaml: no such file or directory" in err
    assert "did you mean d/a.yaml?" not in err


@pytest.mark.timeout(20)
def test_a_pipe_in_a_folder_is_not_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "d").mkdir()
    os.mkfifo(folder / "d" / "a.yaml")
    (folder / "d" / "b.yaml").write_bytes(VALID)
    assert validate.main(["d"]) == 0
    assert "d/b.yaml: FineTuneJob" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(VALID.replace(b"first-try", b"x y"))))
    assert validate.main(["-"]) == 1
    assert capsys.readouterr().out.startswith("stdin:4: metadata.name: ")


LOCAL: list[tuple[list[str], int, str]] = [
    ([], 0, "for this machine (finetune run), not for a cluster"),
    (["--local"], 0, "for this machine"),
    (["--cluster"], 1, "file:// is for a run without a cluster"),
]


@pytest.mark.parametrize(("flags", "code", "says"), LOCAL, ids=str)
def test_a_job_for_this_machine(
    flags: list[str], code: int, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_bytes(VALID.replace(b"s3://", b"file://./"))
    assert validate.main([*flags, "job.yaml"]) == code
    assert says in capsys.readouterr().out


def test_for_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.yaml").write_bytes(VALID)
    (folder / "bad.yaml").write_bytes(VALID.replace(b"metadata:", b"metadata:\n  x: 1"))
    assert validate.main(["--json", "good.yaml", "bad.yaml", "absent.yaml"]) == 2
    out, err = capsys.readouterr()
    said: dict[str, Any] = json.loads(out)
    assert err == ""
    assert said["valid"] is False
    assert [job["name"] for job in said["jobs"]] == ["first-try"]
    assert said["jobs"][0]["file"] == "good.yaml"
    assert said["jobs"][0]["local"] is False
    assert [(fault["file"], fault["line"], fault["path"]) for fault in said["faults"]] == [
        ("bad.yaml", 4, "metadata.x")
    ]
    assert said["unreadable"] == ["absent.yaml: no such file or directory"]
    assert validate.main(["--json", "good.yaml"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
    ids=str,
)
def test_colour(
    terminal: bool,
    environment: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    validate.main([str(JOBS / "minimal.yaml"), str(JOBS / "rank-zero.yaml")])
    assert ("\x1b[" in capsys.readouterr().out) == coloured


@pytest.mark.parametrize("arguments", [[], ["--nonsense", "x"], ["--local", "--cluster", "x"]], ids=str)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        validate.main(arguments)
    assert raised.value.code == 2
    assert "usage: finetune validate" in capsys.readouterr().err
