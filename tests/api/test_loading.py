"""Whole files: several documents, other resources, local jobs, and lines of faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune_operator.api import Fault, InvalidJobError, load, load_job, spell

Build = Callable[..., dict[str, Any]]
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}


def as_text(*documents: Any) -> bytes:
    return "\n---\n".join(json.dumps(document) for document in documents).encode()


def test_every_fault_at_its_line() -> None:
    text = (
        "apiVersion: finetune.dev/v1\n"
        "kind: FineTuneJob\n"
        "metadata: {name: x}\n"
        "spec:\n"
        "  dataset:\n"
        "    sources:\n"
        "    - {uri: s3://a/b}\n"
        "    - uri: ftp://a/b\n"
        "      fromat: Alpaca\n"
        "  training:\n"
        "    epochs: 3\n"
        "    maxSteps: 5\n"
        "  output: {uri: s3://a/b}\n"
    )
    [judged] = load(text.encode(), "job.yaml")
    assert judged.job is None
    assert [str(fault) for fault in judged.faults] == [
        "job.yaml:1: apiVersion: 'finetune.dev/v1' is not allowed here, must be finetune.dev/v1alpha1; "
        "did you mean finetune.dev/v1alpha1?",
        "job.yaml:4: spec.model: is required; write model: {uri: hf://Qwen/Qwen2.5-7B-Instruct}",
        "job.yaml:8: spec.dataset.sources[1].uri: ftp:// is not supported; "
        "use one of hf, modelscope, s3, gs, az, pvc",
        "job.yaml:9: spec.dataset.sources[1].fromat: unknown field; did you mean format?",
        'job.yaml:11: spec.training.epochs: is a number, must be a string; write it in quotes: "3"',
        "job.yaml:12: spec.training.maxSteps: is given beside epochs; remove epochs or maxSteps",
    ]


QUOTING: list[tuple[str, str]] = [
    ("{training: {learningRate: 1e-4}}", 'write it in quotes: "1e-4"'),
    ("{model: {uri: hf://a/b, revision: 1234567}}", 'write it in quotes: "1234567"'),
    ("{dataset: {sources: [{uri: s3://a/b}], systemPrompt: yes}}", 'write it in quotes: "yes"'),
    ("{adapter: {rank: '16'}}", "write 16 without quotes"),
    ("{suspend: 'true'}", "write true without quotes"),
    ("{deepspeed: {stage: '2'}}", "write 2 without quotes"),
    ("{adapter: {targetModules: q_proj}}", "write [q_proj]"),
    ("{model: hf://a/b}", "write {uri: hf://a/b}"),
    ("{dataset: {sources: {uri: s3://a/b}}}", "begin each item with '- '"),
    ("{adapter: {method: [LoRA]}}", "is a list"),
    ("{workers: {sharedMemory: 1.5}}", 'write it in quotes: "1.5"'),
    ("{deadlineSeconds: 0}", "leave the field out"),
    ("{adapter: {dropout: '-0.1'}}", "must not be negative"),
    ("{workers: {nodeSelector: {gpu: AMD Instinct}}}", "write AMD_Instinct"),
]


@pytest.mark.parametrize(("spec", "says"), QUOTING)
def test_what_to_write_instead(spec: str, says: str) -> None:
    [judged] = load(f"spec: {spec}".encode(), "job.yaml")
    assert any(says in str(fault) for fault in judged.faults), judged.faults


def test_names_stand_for_themselves(job_with: Build) -> None:
    [judged] = load(as_text(job_with(("metadata.name", "My Job"))), "job.json")
    assert "write my-job" in str(judged.faults[0])


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"---\n"])
def test_an_empty_file_is_a_fault(data: bytes) -> None:
    assert load(data, "job.yaml")[0].faults == (
        Fault("job.yaml", 1, "", "is empty", "write a FineTuneJob into it"),
    )


def test_other_resources_are_told_apart(job_with: Build) -> None:
    misspelled = job_with(("kind", "FinetuneJobs"), ("apiVersion", "finetuning.dev/v1"))
    judged = load(as_text(SECRET, job_with(), misspelled, {"values": 1}), "all.yaml")
    assert [document.other for document in judged] == ["v1 Secret", "", "", ""]
    assert [bool(document.faults) for document in judged] == [False, False, True, True]
    assert [document.claims_to_be_a_job for document in judged] == [False, True, True, False]
    assert [document.line for document in judged] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("output", "local", "valid", "judged_local"),
    [
        ("file://./runs", None, True, True),
        ("file://./runs", False, False, False),
        ("s3://b/x", None, False, False),
        ("s3://b/x", True, True, True),
    ],
)
def test_local_is_what_writes_to_this_machine(
    output: str, local: bool | None, valid: bool, judged_local: bool, job_with: Build
) -> None:
    job = job_with(("spec.output.uri", output), ("spec.model.uri", "file:///models/x"))
    [judged] = load(as_text(job), "job.yaml", local=local)
    assert (judged.job is not None, judged.local) == (valid, judged_local)


def test_load_job(tmp_path: Path, job_with: Build) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(as_text(SECRET, job_with()))
    assert load_job(path).metadata.name == "first-try"


@pytest.mark.parametrize(
    ("count", "says"), [(0, "holds no FineTuneJob"), (2, "holds 2 jobs")], ids=["none", "several"]
)
def test_load_job_wants_one(tmp_path: Path, job_with: Build, count: int, says: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(as_text(SECRET, *[job_with()] * count))
    with pytest.raises(InvalidJobError, match=says):
        load_job(path)


def test_load_job_tells_all_faults(tmp_path: Path, job_with: Build) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(as_text(job_with(("spec.adapter.rank", 0), ("spec.x", 1))))
    with pytest.raises(InvalidJobError) as raised:
        load_job(path)
    assert [fault.path for fault in raised.value.faults] == ["spec.adapter.rank", "spec.x"]
    with pytest.raises(FileNotFoundError):
        load_job(tmp_path / "absent.yaml")


def test_paths_are_spelled_for_people() -> None:
    assert spell(("spec", "a", 0, "b-c")) == "spec.a[0].b-c"
    assert spell(("metadata", "labels", "a.b/c")) == 'metadata.labels["a.b/c"]'
    assert spell(("a\x1b[31m\n",)) == r'["a\x1b[31m\n"]'
