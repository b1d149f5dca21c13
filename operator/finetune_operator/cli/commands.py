"""Finds the command and gets out of its way.

Commands are modules with `main(argv) -> int`. Those of the trainer replace this process, because the
operator's package may not import the trainer's. No argparse here: `finetune --help` has to be as quick
as an interpreter can be.
"""

from __future__ import annotations

import os
import sys

COMMANDS = {
    "validate": (
        "finetune_operator.cli.validate",
        "check job files: every fault, its line, what to write instead",
    ),
    "run": ("finetune_operator.cli.run", "run a job on this machine, by the stages a cluster runs"),
    "try": ("finetune_trainer.artifact.chat", "ask a trained adapter a question"),
    "data": ("finetune_operator.cli.data", "show what will be learned from data, before any training"),
}
"""Name to module and help. A module of the trainer is executed, one of ours is imported."""

USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE, as shells have it."""
INTERNAL = 23
"""The exit code of `ExitReason.INTERNAL`."""


def dispatch(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None takes those of this process.

    Returns:
        The exit code: the command's own, 2 for wrong usage, 130 after Ctrl-C, 141 when the reader of
        our output went away, 23 for a fault of ours.
    """
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what the terminal can't show must not end the program
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at exit: give it something that can be written to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:  # a full disk behind `> file`, a terminal that is gone
        print(f"finetune: {error.strerror or error}", file=sys.stderr)
        return USAGE
    except Exception as error:  # the last resort: people get a line, `-v` gives the traceback
        if "-v" in arguments or "--verbose" in arguments:
            raise
        print(f"finetune: unexpected {type(error).__name__}: {error} (-v shows where)", file=sys.stderr)
        return INTERNAL
    return code


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(_help(), file=sys.stderr)
        return USAGE
    name, *rest = arguments
    if name in ("-h", "--help", "help"):
        if name == "help" and rest and rest[0] in COMMANDS:
            return _start(rest[0], ["--help"])
        print(_help())
        return 0
    if name in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"finetune-operator {version('finetune-operator')}")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"finetune: no command {name!r}; {hint}", file=sys.stderr)
        return USAGE
    return _start(name, rest)


def _start(name: str, arguments: list[str]) -> int:
    module = COMMANDS[name][0]
    if module.startswith("finetune_trainer."):
        return execute(name, module, arguments)
    import signal
    from importlib import import_module

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # There is nothing to tidy up yet, and an exception could rise within the import of an extension
        # written in Rust, which panics at it.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    command = import_module(module)
    signal.signal(signal.SIGINT, before)
    code: int = command.main(arguments)
    return code


def execute(name: str, module: str, arguments: list[str]) -> int:  # noqa: RET503 - execv never returns
    """Replace this process by a module of the trainer; returns only where the training stack is missing."""
    from importlib.util import find_spec

    missing = [package for package in ("torch", "transformers", "peft") if find_spec(package) is None]
    if missing:
        print(
            f"finetune {name}: needs {', '.join(missing)}; pip install 'finetune-operator[trainer]'",
            file=sys.stderr,
        )
        return USAGE
    sys.stdout.flush()
    # -P: a file in the current folder must not stand in for a module of the same name.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 - no shell is wanted


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: finetune COMMAND ...\n\n"
        "Fine-tune language models: one job file, the same on this machine and on a cluster.\n\n"
        f"commands:\n{commands}\n\n"
        "finetune COMMAND --help says more about one; finetune --version tells the version."
    )
