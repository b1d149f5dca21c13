"""How a run shows itself: a live line on a terminal, plain lines in a pipe, events for machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from finetune_operator.cli.run.words import duration, line
from finetune_trainer.config import Artifact, Event, Outcome, Sample, Stage, Step, Warned


class Display(ABC):
    """Shows a run while it goes on."""

    @abstractmethod
    def event(self, event: Event) -> None:
        """Show one event."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a line of our own."""

    def close(self) -> None:  # noqa: B027 - most displays have nothing to give back
        """Give the terminal back."""


class Plain(Display):
    """One line an event."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, event: Event) -> None:
        """Print the event's line, at once: whoever reads the pipe wants to follow."""
        text = line(event)
        if text and not _is_repetition(event):
            self.note(text)

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._out, flush=True)


class Machine(Display):
    """Events as JSON lines on one stream, our own lines on the other."""

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self._out = out
        self._notes = notes

    def event(self, event: Event) -> None:
        """Print the event."""
        print(event.model_dump_json(), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print the line where it does not disturb the events."""
        print(text, file=self._notes, flush=True)


class Live(Display):
    """A bar that moves, above it the lines worth keeping."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, numbers="")
        self._progress.start()

    def event(self, event: Event) -> None:
        """Move the bar, or keep the event's line."""
        if _is_repetition(event):
            return
        match event:
            case Stage():
                self._progress.update(self._task, description=line(event), total=None, numbers="")
            case Step():
                self._progress.update(
                    self._task,
                    description="train",
                    total=event.total_steps,
                    completed=event.step,
                    numbers=f"{event.step}/{event.total_steps}  loss {event.loss:.3f}  "
                    f"{event.tokens_per_second:.0f} tok/s  ETA {duration(event.eta_seconds)}",
                )
            case Warned():
                self._progress.console.print(line(event), style="yellow", markup=False, soft_wrap=True)
            case Sample() | Artifact() | Outcome():
                pass
            case _:
                self.note(line(event))

    def note(self, text: str) -> None:
        """Keep a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def _is_repetition(event: Event) -> bool:
    """Whether worker 0 says the same: all workers go through the same stages."""
    return isinstance(event, Stage) and event.worker > 0


def choose(out: TextIO, notes: TextIO, *, json: bool) -> Display:
    """The display that fits what is listening.

    Args:
        out: standard output.
        notes: standard error.
        json: whether machines are listening.
    """
    if json:
        return Machine(out, notes)
    console = Console(file=out)
    return Live(console) if console.is_terminal and not console.is_dumb_terminal else Plain(out)
