"""Whatever a file holds, the verdict is a job or faults that fit on a line each; never a traceback."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune_operator.api import load

WHOLE: dict[str, Any] = {
    "apiVersion": "finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "x", "labels": {"a": "b"}},
    "spec": {
        "model": {"uri": "hf://a/b"},
        "dataset": {"sources": [{"uri": "s3://a/b"}], "split": {"train": 1}},
        "adapter": {"method": "QLoRA", "targetModules": ["a"], "quantization": {"type": "NF4"}},
        "training": {"epochs": "1", "microBatchSize": 1},
        "workers": {
            "replicas": 1,
            "resources": {"requests": {"cpu": 1}, "limits": {"cpu": "1"}},
            "tolerations": [{"key": "a"}],
            "environment": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            "nodeSelector": {"a": "b"},
        },
        "deepspeed": {"stage": 3, "config": {}},
        "output": {"uri": "s3://a/b"},
        "protection": {"warnCelsius": 90},
        "cost": {"currency": "CNY", "gpuHour": "1"},
    },
}
WORDS = st.sampled_from(
    [
        "yes",
        "1e-4",
        "~",
        "<<",
        "all-linear",
        "CPU",
        "Exists",
        "s3://a/b",
        "file://x",
        "64Gi",
        "-1",
        "1e9",
        "",
        "\x85",
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=20)
)
KEYS = (
    WORDS | st.text(max_size=10) | st.sampled_from(["uri", "spec", "lora_rank", "name", "status", "metadata"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def places(value: Any) -> list[list[Any]]:
    """Paths of everything within a value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [[], *([step, *rest] for step, inner in steps for rest in places(inner))]


PLACES = places(WHOLE)[1:]


def judge(data: bytes) -> None:
    for judged in load(data, "job.yaml"):
        assert (judged.job is not None) + bool(judged.faults) + bool(judged.other) == 1
        for fault in judged.faults:
            assert fault.line >= 1
            assert str(fault).isprintable(), "no fault may break its line or the terminal"


def changed(place: list[Any], value: Any, key: str | None) -> Any:
    job = copy.deepcopy(WHOLE)
    target: Any = job
    for step in place[:-1]:
        target = target[step]
    if key is not None and isinstance(target, dict):
        target[key] = value
    else:
        target[place[-1]] = value
    return job


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.sampled_from(PLACES), value=VALUES, key=st.none() | KEYS, as_yaml=st.booleans())
def test_a_job_with_anything_anywhere(place: list[Any], value: Any, key: str | None, as_yaml: bool) -> None:
    job = changed(place, value, key)
    judge((yaml.safe_dump(job) if as_yaml else json.dumps(job)).encode(errors="surrogatepass"))


@settings(max_examples=100, deadline=None)
@given(value=VALUES)
def test_any_value(value: Any) -> None:
    judge(json.dumps(value).encode())


@settings(max_examples=100, deadline=None)
@given(
    data=st.binary(max_size=60)
    | st.text(alphabet="ab:-{}[]&*!|>'\"%@#,\n\t 1<.", max_size=60).map(str.encode)
)
def test_any_bytes(data: bytes) -> None:
    judge(data)
