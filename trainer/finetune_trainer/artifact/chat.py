"""`finetune try`: ask a published adapter a question, on the base model it was trained for."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from finetune_trainer import libraries
from finetune_trainer.artifact.locate import Published, locate
from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import cache_folder, open_source

if TYPE_CHECKING:
    from finetune_trainer.artifact.conversation import Conversation

USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE, as shells have it."""


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, the exit code of the reason why it could not answer, 2 for wrong usage, 130 after Ctrl-C,
        or 141 when the reader of our output went away.
    """
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what the terminal can't show must not end the program
            stream.reconfigure(errors="backslashreplace")
    try:
        _answer(arguments)
        sys.stdout.flush()
    except RunError as error:
        if arguments.verbose:
            raise
        hint = f"; {error.hint}" if error.hint else ""
        print(f"finetune try: {error.message}{hint}", file=sys.stderr)
        return error.reason.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at exit: give it something that can be written to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # the last resort: people get a line, `-v` gives the traceback
        if arguments.verbose:
            raise
        print(f"finetune try: {type(error).__name__}: {error} (-v shows where)", file=sys.stderr)
        return ExitReason.INTERNAL.exit_code
    return 0


def _answer(arguments: argparse.Namespace) -> None:
    published = locate(arguments.adapter)
    base = _fetch_base(published, arguments.base)
    _say(_describe(published))
    # Everything that can be wrong with the arguments has been told: now the seconds for torch.
    libraries.settle()
    from finetune_trainer.artifact.conversation import Conversation, Manner

    trained = published.metadata.dataset
    usual = trained.system_prompt if trained.chat else ""
    system = usual if arguments.system is None else arguments.system
    manner = Manner(system, arguments.max_tokens, arguments.temperature)
    talk = Conversation.open(published, base, manner, trust_remote_code=arguments.trust_remote_code)
    for question in arguments.questions:
        if len(arguments.questions) > 1:
            print(f"> {question}", flush=True)
        _ask(talk, question, compare=arguments.compare)
    if not arguments.questions:
        _prompt(talk, compare=arguments.compare)


def _prompt(talk: Conversation, *, compare: bool) -> None:
    """Read questions until the end of input; on a terminal, with history and editing."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - its import is what gives input() editing and history

        _say("Each question stands for itself. Ctrl-C breaks an answer off, Ctrl-D ends.")
    while True:
        try:
            question = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            if sys.stdin.isatty():
                print()
            return
        if not question:
            continue
        try:
            _ask(talk, question, compare=compare)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print()


def _ask(talk: Conversation, question: str, *, compare: bool) -> None:
    if compare:
        print("base:  ", end="", flush=True)
        talk.stream(question, tuned=False)
        print("tuned: ", end="", flush=True)
    talk.stream(question, tuned=True)


def _fetch_base(published: Published, named: str | None) -> Path:
    """The base model's folder: the one that was named, else the one that the adapter was trained on."""
    base = published.metadata.base_model
    if named is None:
        uri, revision = base.uri, base.commit or base.revision or "main"
    else:
        uri, revision = (named if "://" in named else f"file://{Path(named).expanduser().absolute()}"), "main"
    try:
        return open_source(uri, purpose="model", revision=revision).fetch(cache_folder())
    except RunError as error:
        other = "name a folder that holds it with --base"
        hint = "check --base" if named else f"{error.hint}, or {other}" if error.hint else other
        raise RunError(error.reason, error.message, hint) from error


def _describe(published: Published) -> str:
    metadata = published.metadata
    losses = metadata.losses
    words = [f"job {metadata.job.name}, attempt {metadata.job.attempt}", f"base {metadata.base_model.name}"]
    if losses.test_before is not None and losses.test_after is not None:
        words.append(f"test loss {losses.test_before:.2f} before and {losses.test_after:.2f} after")
    if published.others:
        words.append(f"the newest of {published.others + 1}")
    return f"{published.uri} ({', '.join(words)})"


def _say(line: str) -> None:
    """Tell the person something that is not part of the answer."""
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetune try",
        description="Ask a published adapter questions. Its files are checked against their manifest first; "
        "answers go to the standard output, everything else to standard error.",
        epilog="Without a question it asks for some, one a line, until Ctrl-D.",
    )
    parser.add_argument(
        "adapter",
        metavar="DIR",
        help="the adapter's folder or any folder above it (the newest published adapter counts), "
        "or a file://, pvc://, s3://, gs:// or az:// URI",
    )
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help="each is answered by itself")
    parser.add_argument(
        "--base", metavar="DIR", help="folder or URI of the base model (default: where it was trained from)"
    )
    parser.add_argument("--compare", action="store_true", help="show the base model's answer, too")
    parser.add_argument(
        "--max-tokens",
        type=_positive,
        default=200,
        metavar="N",
        help="length of an answer at most (default 200)",
    )
    parser.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="0 takes the likeliest token each time, higher is more varied (default 0)",
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="system prompt (default: the one of the training job; '' for none)"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that the base model brings"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 10")
    return value


if __name__ == "__main__":
    sys.exit(main())
