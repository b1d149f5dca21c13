"""What the packages import is what `pyproject.toml` asks for, and the base installation needs no more."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"finetune_operator", "finetune_trainer", "pydantic_core"}  # pydantic pins its own core exactly
BASE = PROJECT["dependencies"]
TRAINER = PROJECT["optional-dependencies"]["trainer"]


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def imported(package: str) -> set[str]:
    """Top-level names that a package's modules import, at their head or inside a function."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - OURS


@pytest.mark.parametrize(
    ("package", "declared"),
    [
        ("operator/finetune_operator", names(BASE)),
        ("trainer/finetune_trainer/config", names(BASE)),
        ("trainer/finetune_trainer", names(BASE + TRAINER)),
    ],
)
def test_every_import_is_declared(package: str, declared: set[str]) -> None:
    distributions = packages_distributions()
    undeclared = {
        module
        for module in imported(package)
        if not {canonicalize_name(name) for name in distributions.get(module, [])} & declared
    }
    assert undeclared == set()


@pytest.mark.parametrize(
    "module", ["finetune_trainer.config", "finetune_operator.api", "finetune_operator.cli"]
)
def test_the_contract_and_the_command_line_load_no_training_stack(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert not set(loaded) & {"torch", "transformers", "numpy", "peft", "deepspeed", "obstore", "kubernetes"}
