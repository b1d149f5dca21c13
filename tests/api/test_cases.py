"""Every agreed manifest gets its verdict from pure Python too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.api import FineTuneJob, load, parse, refused
from finetune_operator.api.documents import read

JOBS = Path(__file__).parents[1] / "cases" / "jobs"
CASES = yaml.safe_load((JOBS / "cases.yaml").read_text(encoding="utf-8"))
CREATE: list[dict[str, Any]] = CASES["create"]
UPDATE: list[dict[str, Any]] = CASES["update"]


def named(case: dict[str, Any]) -> str:
    return str(case.get("file") or f"{case['from']}->{case['to']}")


def at(value: Any, path: str) -> bool:
    for step in path.split("."):
        if not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return True


@pytest.mark.parametrize("case", CREATE, ids=named)
def test_created(case: dict[str, Any]) -> None:
    judged = load((JOBS / case["file"]).read_bytes(), case["file"], local=False)
    assert len(judged) == 1
    faults = "\n".join(map(str, judged[0].faults)).lower()
    assert (judged[0].job is not None) == (case["verdict"] == "accepted"), faults
    assert all(word.lower() in faults for word in case.get("says", [])), faults


@pytest.mark.parametrize("case", [case for case in CREATE if case["verdict"] == "rejected"], ids=named)
def test_rejected_by_a_server_that_prunes_too(case: dict[str, Any]) -> None:
    [document] = read((JOBS / case["file"]).read_bytes())
    problems = parse(document.value, strict=False)
    assert isinstance(problems, list)
    assert len(problems) == 1, "each rejected manifest has one fault"


@pytest.mark.parametrize("case", [case for case in CREATE if case.get("absent")], ids=named)
def test_dropped_without_strict_field_validation(case: dict[str, Any]) -> None:
    [document] = read((JOBS / case["file"]).read_bytes())
    job = parse(document.value, strict=False)
    assert isinstance(job, FineTuneJob)
    stored = job.model_dump(by_alias=True)
    assert all(at(document.value, path) and not at(stored, path) for path in case["absent"])


@pytest.mark.parametrize("case", [case for case in CREATE if case["verdict"] == "accepted"], ids=named)
def test_nothing_the_user_wrote_is_rewritten(case: dict[str, Any]) -> None:
    [document] = read((JOBS / case["file"]).read_bytes())
    job = parse(document.value)
    assert isinstance(job, FineTuneJob)
    written = {key: part for key, part in document.value.items() if key != "status"}  # type: ignore[attr-defined]
    assert job.model_dump(by_alias=True, exclude_unset=True) == written


@pytest.mark.parametrize("case", UPDATE, ids=named)
def test_updated(case: dict[str, Any]) -> None:
    stored, wanted = (
        load((JOBS / case[side]).read_bytes(), case[side], local=False)[0].job for side in ("from", "to")
    )
    assert stored
    assert wanted
    problems = refused(stored, wanted)
    assert (not problems) == (case["verdict"] == "accepted")
    said = str(problems).lower() + ".".join(str(step) for problem in problems for step in problem.path)
    assert all(word.lower() in said for word in case.get("says", [])), said


def test_suspending_and_reshaping_at_once_is_refused(job_with: Any) -> None:
    running = parse(job_with(("spec.workers.replicas", 1)))
    both = parse(job_with(("spec.workers.replicas", 2), ("spec.suspend", True)))
    assert isinstance(running, FineTuneJob)
    assert isinstance(both, FineTuneJob)
    assert [problem.path for problem in refused(running, both)] == [("spec", "workers")]
    assert refused(both, running) == [], "what counts is whether the stored job is suspended"


def test_a_default_written_out_is_no_change(job_with: Any) -> None:
    bare, explicit = parse(job_with()), parse(job_with(("spec.checkpoint", {"steps": 500, "keep": 3})))
    assert isinstance(bare, FineTuneJob)
    assert isinstance(explicit, FineTuneJob)
    assert refused(bare, explicit) == []
