"""The generated pages are what the code says, and say something about everything."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from finetune_operator.api import Spec
from finetune_operator.api.base import Part
from finetune_trainer.config import Event, ExitReason
from scripts import reference
from scripts.pages.docstrings import attributes, summary
from scripts.pages.job import blocks
from tests.docs.markdown import anchors, read


@pytest.mark.parametrize("name", reference.PAGES)
def test_pages_are_current(name: str) -> None:
    assert read(f"docs/reference/{name}") == reference.page(name), "run 'make reference'"


def test_check_names_what_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    for name in reference.PAGES:
        (tmp_path / name).write_text(reference.page(name), encoding="utf-8")
    assert reference.stale() == []
    (tmp_path / "job.md").write_text("an older one")
    (tmp_path / "cli.md").unlink()
    assert reference.stale() == ["job.md", "cli.md"]


@pytest.mark.parametrize(("path", "part"), list(blocks(Spec, "spec")))
def test_every_field_of_a_job_is_explained(path: str, part: type[Part]) -> None:
    page, known = read("docs/reference/job.md"), attributes(part)
    section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
    assert summary(part)
    for name, info in part.model_fields.items():
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `{info.alias}` |")]
        cells = row.replace("\\|", "").strip("| ").split(" | ")
        assert cells[-1].strip(), f"{path}.{name} has no docstring, nor has what it holds"
        assert known.get(name, "") in row


def test_every_field_of_an_event_is_explained() -> None:
    for event in get_args(Event):
        assert set(attributes(event)) >= set(event.model_fields) - {"event"}, event.__name__


def test_limits_and_defaults_are_told() -> None:
    page = read("docs/reference/job.md")
    for row in (
        '| `dropout` | number in quotes | `"0.05"` | at least 0 and below 1 |',
        "| `rank` | whole number | `16` | 1 to 512 |",
        "| `sources` | [list of objects](#specdatasetsources) | required | 1 to 64 items |",
        "| `stage` | one of `Auto`, `0`, `1`, `2`, `3` | `Auto` |  |",
        "| `sharedMemory` | quantity |  | like `64Gi`, `500m` or a whole number |",
    ):
        assert row in page


def test_every_exit_reason_has_its_code_and_its_section() -> None:
    page = read("docs/reference/exit-reasons.md")
    for reason in ExitReason:
        again = "yes" if reason.retry else "no"
        assert (
            f"[`{reason}`](../troubleshooting.md#{reason.lower()}) | {reason.exit_code} | {again} |" in page
        )
        assert reason.lower() in anchors("docs/troubleshooting.md")
