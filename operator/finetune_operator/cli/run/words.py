"""Events and numbers as people read them: pure."""

from __future__ import annotations

import shlex
from pathlib import Path

from finetune_trainer.config import Checkpoint, Evaluation, Event, Prepared, Stage, Step, Warned

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: int) -> str:
    """A number of bytes with three digits or so, in decimal units."""
    number = float(count)
    for unit in _UNITS:
        if number < 999.5 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def numbers(step: Step) -> str:
    """The numbers of a step that a person follows."""
    return (
        f"loss {step.loss:.3f}  lr {step.learning_rate:.1e}  grad {step.gradient_norm:.2f}  "
        f"mem {size(step.memory_bytes)}  {step.tokens_per_second:.0f} tok/s  ETA {duration(step.eta_seconds)}"
    )


def clean(text: str) -> str:
    """Text of a model, a file or a library on one line, without what could steer a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in " ".join(text.split())
    )


def line(event: Event) -> str:
    """An event as one line; empty for those that are told at the end of a run."""
    return clean(_line(event)) if isinstance(event, Stage | Warned) else _line(event)


def _line(event: Event) -> str:
    match event:
        case Stage():
            return f"{event.name}: {event.message}" if event.message else event.name
        case Step():
            return f"step {event.step}/{event.total_steps}  {numbers(event)}"
        case Evaluation():
            return f"{event.split} loss {event.loss:.3f} at step {event.step} ({event.tokens} tokens)"
        case Checkpoint(resumed=True):
            return f"continuing from the checkpoint of step {event.step}"
        case Checkpoint():
            return f"checkpoint of step {event.step} ({size(event.bytes)} in {event.seconds:.1f}s)"
        case Prepared():
            return _prepared(event)
        case Warned():
            return f"warning: {event.message}" + (f" ({event.hint})" if event.hint else "")
        case _:
            return ""


def _prepared(event: Prepared) -> str:
    splits = ", ".join(f"{name} {count}" for name, count in event.splits.items())
    parts = [
        f"{event.rows} rows" + (f" ({splits})" if splits else ""),
        f"{event.tokens} tokens, {event.trained_token_share:.0%} of them trained",
    ]
    if event.dropped:
        parts.append(f"{event.dropped} dropped")
    if event.truncated:
        parts.append(f"{event.truncated} truncated")
    if event.reused:
        parts.append("prepared by an earlier run")
    return "data: " + "; ".join(parts)


def program(started: Path, folder: Path, *, on_path: bool, python: str) -> str:
    """What to type for `finetune`, so that a command shown can be copied as it is.

    Args:
        started: the absolute path of what this process was started as.
        folder: the current folder.
        on_path: whether a shell finds `finetune` by its name.
        python: the interpreter's path.
    """
    if on_path:
        return "finetune"
    if started.name != "finetune":
        return shlex.join([python, "-m", "finetune_operator.cli"])
    below = started.is_relative_to(folder)
    return shlex.quote(str(started.relative_to(folder) if below else started))
