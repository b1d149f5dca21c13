"""What pages show is what the project takes: jobs, events, commands, names."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from finetune_operator.api import load
from finetune_operator.cli.commands import COMMANDS
from finetune_trainer.config import TEMPLATES, parse_event
from finetune_trainer.storage.credentials import KEYS
from scripts.pages.commands import parsers
from tests.docs.markdown import NAMES, ROOT, Block, blocks, prose, read

JOBS = [
    pytest.param(block, id=f"{name}:{block.line}") for name in NAMES for block in blocks(name, "yaml", "yml")
]
SHELL = [pytest.param(block, id=f"{name}:{block.line}") for name in NAMES for block in blocks(name, "sh")]
REST = {
    "model": 'model: {uri: "hf://a/b"}',
    "dataset": 'dataset: {sources: [{uri: "s3://a/b"}]}',
    "output": 'output: {uri: "s3://a/c"}',
}


def whole(text: str) -> str:
    """A job file; a part of `spec` gets what it lacks."""
    if re.search(r"^kind:", text, re.MULTILINE):
        return text
    lacking = [line for key, line in REST.items() if not re.search(rf"^{key}:", text, re.MULTILINE)]
    spec = textwrap.indent("\n".join([*lacking, text]), "  ")
    return f"apiVersion: finetune.dev/v1alpha1\nkind: FineTuneJob\nmetadata: {{name: example}}\nspec:\n{spec}"


@pytest.mark.parametrize("block", JOBS)
def test_jobs_are_valid(block: Block) -> None:
    (judged,) = load(whole(block.text).encode(), "example", local="file://" in block.text)
    assert [str(fault) for fault in judged.faults] == []
    assert judged.job is not None


def test_a_part_of_a_job_is_judged_like_a_whole_one() -> None:
    (judged,) = load(whole("training: {epoch: 3}").encode(), "example")
    assert ["unknown field" in str(fault) for fault in judged.faults] == [True]


def commands(text: str) -> list[list[str]]:
    """The words of each call of `finetune` in a shell script."""
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    calls = [line[line.index("finetune") :] for line in words if "finetune" in line]
    return [call[: call.index(">")] if ">" in call else call for call in calls]


@pytest.mark.parametrize("block", SHELL)
def test_shown_commands_can_be_typed(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    known = parsers()
    for _, name, *arguments in commands(block.text):
        assert name in COMMANDS
        try:
            known[f"finetune {name}"].parse_args(arguments)
        except SystemExit:
            pytest.fail(f"finetune {name} {shlex.join(arguments)}: {capsys.readouterr().err}")


@pytest.mark.parametrize("name", NAMES)
def test_named_commands_and_targets_exist(name: str) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    options = {option for parser in parsers().values() for option in parser._option_string_actions}
    for code in re.findall(r"`([^`\n]+)`", prose(name)):
        words = code.split()
        if words[0] == "finetune" and len(words) > 1:
            assert words[1] in {*COMMANDS, "COMMAND", "--help", "--version"}, code
            assert {word for word in words[2:] if word.startswith("--")} <= options, code
        if words[0] == "make" and len(words) > 1:
            assert words[1] in targets, code


@pytest.mark.parametrize("name", NAMES)
def test_shown_events_are_of_the_contract(name: str) -> None:
    for block in blocks(name, "json"):
        for line in block.text.splitlines():
            shown = json.loads(line)
            if "event" in shown:
                assert json.loads(parse_event(line).model_dump_json()) == shown


def test_every_template_is_described() -> None:
    table = read("docs/data.md").partition("## Templates")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert sorted(named) == sorted(TEMPLATES)


@pytest.mark.parametrize("scheme", [scheme for scheme, keys in KEYS.items() if keys])
def test_every_key_is_listed(scheme: str) -> None:
    page = read("docs/storage.md")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{scheme}` |")]
    for key in KEYS[scheme]:
        assert f"`{key}`" in (page if key in ("AWS_CA_BUNDLE", "SSL_CERT_FILE") else row)


def test_the_readme_shows_rows_of_the_quickstart() -> None:
    lines = (ROOT / "examples/quickstart/facts.jsonl").read_text(encoding="utf-8").splitlines()
    facts = {row["instruction"]: row["output"] for row in map(json.loads, lines)}
    shown = re.findall(r"^  question  (.+)\n  expected  (.+)$", read("README.md"), re.MULTILINE)
    assert shown
    assert [facts.get(question) for question, _ in shown] == [answer for _, answer in shown]


def test_architecture_names_modules_that_exist() -> None:
    page = read("docs/architecture.md")
    folders = ("operator", "trainer", "benchmarks")
    existing = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", page)}
    assert named
    assert named <= existing
