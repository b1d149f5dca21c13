"""docs/reference/cli.md: every command with its arguments and options."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn
from unittest import mock

from finetune_operator.cli.commands import COMMANDS
from scripts.pages.docstrings import one_line
from scripts.pages.markdown import paragraphs, table

AGENT = ("finetune_trainer.worker", "the agent of one worker; started by `finetune run`, not by people")
_INTRODUCTION = """
`finetune` lists its commands, `finetune COMMAND --help` explains one, `finetune --version` tells the
version. In a checkout the command is `.venv/bin/finetune`. [Running a job](../running.md) shows them at
work.
"""


class _Caught(BaseException):
    """Carries a parser out of a command. Not an Exception: commands turn those into messages."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(main: Callable[[list[str]], int]) -> argparse.ArgumentParser:
    """The parser that a command builds, caught when it is about to be used.

    Raises:
        LookupError: the command does without one.
    """

    def catch(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _Caught(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", catch), contextlib.suppress(SystemExit):
        try:
            main([])
        except _Caught as caught:
            return caught.parser
    raise LookupError(f"{main.__module__} builds no parser")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by the words that start it."""
    modules = {name: import_module(module) for name, (module, _) in COMMANDS.items()}
    # `data` only hands over: its options are those of the module that it names.
    found = {
        f"finetune {name}": parser_of(import_module(getattr(module, "MODULE", module.__name__)).main)
        for name, module in modules.items()
    }
    return found | {"finetune-worker": parser_of(import_module(AGENT[0]).main)}


def _actions(parser: argparse.ArgumentParser) -> tuple[list[argparse.Action], list[argparse.Action]]:
    """Positional arguments, and options but for `--help`."""
    # argparse has no public list of them, and the text of its help differs between versions of Python.
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    options = [action for action in actions if action.option_strings]
    return [action for action in actions if not action.option_strings], options


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return f" {action.metavar}"
    return " {" + ",".join(map(str, action.choices)) + "}" if action.choices else f" {action.dest.upper()}"


def _usage(words: str, arguments: list[argparse.Action], options: list[argparse.Action]) -> str:
    shown = [words, "[options]"] if any(not action.required for action in options) else [words]
    shown += [f"{action.option_strings[0]}{_value(action)}" for action in options if action.required]
    for action in arguments:
        name = _value(action).strip()
        shown.append({"*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name))
    return " ".join(shown)


def _help(action: argparse.Action) -> str:
    text = one_line(action.help or "")
    values = {key: value for key, value in vars(action).items() if key != "help"}
    return text % values


def _section(words: str, parser: argparse.ArgumentParser) -> list[str]:
    arguments, options = _actions(parser)
    rows = [(f"`{_value(action).strip()}`", _help(action)) for action in arguments]
    for action in options:
        spelled = ", ".join(f"`{spelling}{_value(action)}`" for spelling in action.option_strings)
        rows.append((spelled, _help(action)))
    lines = [f"## {words}", "", *paragraphs(parser.description or "")]
    lines += ["```text", _usage(words, arguments, options), "```", "", *table(("Argument", "Meaning"), rows)]
    return lines + (paragraphs(parser.epilog) if parser.epilog else [])


def render() -> str:
    """The page without its note."""
    commands = [(f"[`finetune {name}`](#finetune-{name})", text) for name, (_, text) in COMMANDS.items()]
    commands.append(("[`finetune-worker`](#finetune-worker)", AGENT[1]))
    lines = ["# Commands", "", *paragraphs(_INTRODUCTION), *table(("Command", "What it does"), commands)]
    for words, parser in parsers().items():
        lines += _section(words, parser)
    return "\n".join(lines)
