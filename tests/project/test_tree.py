"""The checks of the tree find what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_tree import MODULE_LINES, length_faults, machine_faults
from tests.fixtures.folders import fill


def test_a_module_of_the_wanted_length_passes(tmp_path: Path) -> None:
    fill(tmp_path, {"operator/a.py": "x = 1\n" * MODULE_LINES, "tests/b.py": "x = 1\n" * (MODULE_LINES + 1)})
    assert list(length_faults(tmp_path)) == []


def test_a_longer_module_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"trainer/deep/a.py": "x = 1\n" * (MODULE_LINES + 1)})
    assert list(length_faults(tmp_path)) == ["trainer/deep/a.py: 401 lines, at most 400 are wanted: split it"]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("docs/a.md", "see /" + "root/notes"),
        ("requirements/a.txt", "--index-url https://" + "pypi" + ".org/simple"),
        (".ci/run", "curl https://files." + "python" + "hosted.org/x"),
        ("a.bin", "\0\0/" + "root/x"),
    ],
)
def test_traces_of_a_machine_are_named(tmp_path: Path, path: str, line: str) -> None:
    fill(tmp_path, {path: f"fine\n{line}\n"})
    (fault,) = machine_faults(tmp_path)
    assert fault.startswith(f"{path}:2: ")


def test_the_checkout_s_own_folder_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a.md": f"cd {tmp_path}/docs\n"})
    assert len(list(machine_faults(tmp_path))) == 1


@pytest.mark.parametrize("path", ["a.md", ".venv/a.md", "runs/a.md", "tests/cases/a.md"])
def test_what_may_stay(tmp_path: Path, path: str) -> None:
    line = "a relative x/root/y and ./root/z" if path == "a.md" else "/" + "root/"
    fill(tmp_path, {path: line})
    assert list(machine_faults(tmp_path)) == []
