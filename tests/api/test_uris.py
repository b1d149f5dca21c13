"""Addresses: which are refused, in which words, and what local ones resolve to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from finetune_operator.api import FineTuneJob, parse, uris

REFUSED = [
    ("spec.model.uri", "Qwen/Qwen2.5-7B", "write hf://Qwen/Qwen2.5-7B"),
    ("spec.model.uri", "https://huggingface.co/Qwen/Qwen2.5-7B/", "write hf://Qwen/Qwen2.5-7B"),
    ("spec.model.uri", "https://www.modelscope.cn/models/qwen/Q", "write modelscope://qwen/Q"),
    ("spec.model.uri", "HF://a/b", "did you mean hf://"),
    ("spec.model.uri", "gcs://bucket/model", "did you mean gs://"),
    ("spec.model.uri", "abfss://c/m", "did you mean az://"),
    ("spec.model.uri", "http://example.com/model", "use one of hf, modelscope, s3"),
    ("spec.model.uri", "://a/b", "has no scheme"),
    ("spec.model.uri", "s3://", "names no bucket"),
    ("spec.model.uri", "hf:///a/b", "names no repository"),
    ("spec.model.uri", "s3://key@bucket/x", "credentialsSecret"),
    ("spec.model.uri", "s3://bucket/x?X-Amz-Signature=abc", "query"),
    ("spec.model.uri", "s3://bucket/x#main", "fragment"),
    ("spec.model.uri", "s3://bucket/../x", "'..'"),
    ("spec.model.uri", "s3://bucket/./x", "'.'"),
    ("spec.model.uri", "s3://bucket/%2E%2e/x", "'..'"),
    ("spec.model.uri", "s3://bucket/x ", "space"),
    ("spec.model.uri", "s3://bucket/x\ny", "control character"),
    ("spec.model.uri", "pvc://My_Claim/x", "claim"),
    ("spec.model.uri", "s3://bucket/" + "x" * 1024, "at most 1024"),
    ("spec.model.uri", "", "empty"),
    ("spec.model.uri", "file:///models/x", "finetune validate --local"),
    ("spec.dataset.sources", [{"uri": "tatsu-lab/alpaca"}], "write hf://datasets/tatsu-lab/alpaca"),
    ("spec.output.uri", "hf://me/model", "use one of s3, gs, az, pvc"),
    ("spec.output.uri", "modelscope://me/model", "s3"),
    ("spec.output.uri", "https://huggingface.co/me/model", "s3"),
    ("spec.output.uri", "runs/x", "write s3://runs/x"),
]
ACCEPTED = [
    "hf://gpt2",
    "hf://org/name",
    "modelscope://org/name",
    "s3://bucket",
    "s3://bucket/a..b/...",
    "s3://bucket/me@home/字",
    "gs://b/x/",
    "az://c/x",
    "pvc://claim",
    "pvc://my.claim/a b/c",
]
LOCAL_REFUSED = [
    ("file://data/x", "write file://./data/x"),
    ("file:data/x", "write file://./data/x"),
    ("file:/abs", "write file:///abs"),
    ("/abs/x", "write file:///abs/x"),
    ("./x", "write file://./x"),
    ("~/x", "write file://~/x"),
    ("file://", "names no file"),
    ("file://./x?y", "query"),
    ("s3://b/../x", "'..'"),
    ("ftp://x/y", "pvc, file"),
]
RESOLVED = [
    ("file:///a/b", "file:///a/b"),
    ("file://./a/b", "file:///work/job/a/b"),
    ("file://../a", "file:///work/a"),
    ("file://.", "file:///work/job"),
    ("file://~/m", "file:///home/lin/m"),
    ("file://~", "file:///home/lin"),
    ("file://./a/../b c/字", "file:///work/job/b c/字"),
    ("s3://b/x", "s3://b/x"),
]


@pytest.mark.parametrize(("path", "uri", "says"), REFUSED, ids=lambda part: str(part)[:40])
def test_refused(path: str, uri: Any, says: str, job_with: Callable[..., dict[str, Any]]) -> None:
    problems = parse(job_with((path, uri)))
    assert isinstance(problems, list)
    assert len(problems) == 1
    assert says in f"{problems[0].message}; {problems[0].suggestion}"


@pytest.mark.parametrize("uri", ["s3://AKIA:hunter2@bucket/x", "s3://bucket/x?sig=hunter2", "hf_hunter2"])
def test_keys_are_never_repeated(uri: str, job_with: Callable[..., dict[str, Any]]) -> None:
    problems = parse(job_with(("spec.model.uri", uri), ("spec.model.credentialsSecret", "hf_hunter2")))
    assert isinstance(problems, list)
    assert "hunter2" not in str(problems)


@pytest.mark.parametrize("uri", ACCEPTED)
def test_accepted(uri: str, job_with: Callable[..., dict[str, Any]]) -> None:
    assert isinstance(parse(job_with(("spec.model.uri", uri))), FineTuneJob)


@pytest.mark.parametrize(("uri", "says"), LOCAL_REFUSED)
def test_refused_locally(uri: str, says: str, job_with: Callable[..., dict[str, Any]]) -> None:
    problems = parse(job_with(("spec.model.uri", uri)), local=True)
    assert isinstance(problems, list)
    assert says in f"{problems[0].message}; {problems[0].suggestion}"


@pytest.mark.parametrize(("uri", "absolute"), RESOLVED)
def test_absolute(uri: str, absolute: str, job_with: Callable[..., dict[str, Any]]) -> None:
    assert isinstance(parse(job_with(("spec.output.uri", uri)), local=True), FineTuneJob)
    resolved = uris.absolute(uri, folder=PurePosixPath("/work/job"), home=PurePosixPath("/home/lin"))
    assert resolved == absolute
