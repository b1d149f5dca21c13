"""The programs of a run, and one of them as a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from finetune_trainer.config import Event, ExitReason, Outcome, parse_event

_LINE_LIMIT = 4 * 1024 * 1024
_TAIL_LINES = 20


def _module(name: str) -> list[str]:
    # -P: a folder of the user's that is called like a library must not be imported in its place.
    return [sys.executable, "-P", "-m", name]


@dataclass(frozen=True)
class Programs:
    """Command lines without arguments."""

    survey: list[str] = field(default_factory=lambda: _module("finetune_trainer.worker.survey"))
    prepare: list[str] = field(default_factory=lambda: _module("finetune_trainer.prepare"))
    agent: list[str] = field(default_factory=lambda: _module("finetune_trainer.worker"))


def tethered(command: list[str]) -> list[str]:
    """The command line of a process that dies with this one, however this one ends.

    It must be started from the main thread: the kernel ties it to the thread that forked.
    """
    return [*_module("finetune_trainer.worker.tether"), str(os.getpid()), *command]


class Child:
    """A stage or an agent as a child process that dies with this one.

    It leads a session of its own: Ctrl-C in the terminal reaches only us, who then ask it to stop.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        self._process = process
        self._name = name
        self._log = log

    @classmethod
    async def start(cls, command: list[str], name: str, log: Path, environment: Mapping[str, str]) -> Self:
        """Start a command.

        Args:
            command: program and arguments.
            name: what messages call it, such as "prepare".
            log: file for its standard error, written anew.
            environment: all of its environment.

        Raises:
            OSError: the log cannot be written or the process not be started.
        """
        with log.open("wb") as chatter:
            process = await asyncio.create_subprocess_exec(
                *tethered(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=chatter,
                env=dict(environment),
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
        return cls(process, name, log)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def lines(self, on_line: Callable[[bytes], None]) -> int:
        """Hand on each line of its standard output until it ends; returns its exit status."""
        stdout = self._process.stdout
        if stdout is None:  # it was started with a pipe
            raise AssertionError
        while True:
            try:
                line = await stdout.readline()
            except ValueError:  # longer than any event: dropped
                continue
            if not line:
                break
            on_line(line)
        return await self._process.wait()

    async def events(self, on_event: Callable[[Event], None]) -> Outcome:
        """Hand on each of its events but the outcome, which is returned once it has ended."""
        said: list[Outcome] = []

        def read(line: bytes) -> None:
            try:
                event = parse_event(line)
            except ValidationError:  # chatter that a library wrote to the wrong stream
                return
            if isinstance(event, Outcome):
                said.append(event)
            else:
                on_event(event)

        status = await self.lines(read)
        return said[-1] if said else self.unexplained(status)

    def unexplained(self, status: int) -> Outcome:
        """The outcome of a process that ended without telling one.

        Args:
            status: its exit status, negative for a signal.
        """
        if status == -signal.SIGTERM:
            # Nobody who listens dies of it: the request came while the interpreter was still starting.
            return Outcome(
                reason=ExitReason.PREEMPTED, message=f"{self._name} was stopped before it began its work"
            )
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        if status < 0:
            how = f"was killed by signal {-status}"
        else:
            last = next((line.strip() for line in reversed(tail) if line.strip()), "it said nothing")
            how = f"ended with exit code {status}: {last}"
        reason = ExitReason.from_exit_code(status) if status else ExitReason.INTERNAL
        return Outcome(reason=reason, message=f"{self._name} {how}", traceback=tail)
