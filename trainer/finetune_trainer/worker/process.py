"""One process of a stage under the agent's eyes: its events, its log, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from finetune_trainer.config import Event, Outcome, parse_event
from finetune_trainer.worker.tether import tethered

_LOG = logging.getLogger(__name__)
_EVENT_LIMIT = 4 * 1024 * 1024
_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 200
_DRAIN_SECONDS = 2.0
_KILL_SECONDS = 10.0
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    returncode: int
    """As `subprocess` gives it: negative for a signal."""
    outcome: Outcome | None
    """What the process itself said last, if it could still say it."""
    tail: list[str]
    """Last lines of its log."""


class StageProcess:
    """A process in a session of its own that dies with the agent.

    Its events come through a pipe: either the one named by `FINETUNE_EVENTS_FD`, with the
    standard output going to the log, or the standard output itself. The outcome event is
    kept for the agent; every other event is handed on at once.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        name: str,
        log: Path,
        on_event: Callable[[Event], None],
        reader: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
    ) -> None:
        self._process = process
        self._name = name
        self._log = log
        self._on_event = on_event
        self._transport = transport
        self._outcome: Outcome | None = None
        self._events = asyncio.create_task(self._relay(reader))

    @classmethod
    async def start(
        cls,
        command: list[str],
        *,
        name: str,
        log: Path,
        environment: Mapping[str, str],
        on_event: Callable[[Event], None],
        events_on_stdout: bool = False,
    ) -> Self:
        """Start a command.

        Args:
            command: program and arguments.
            name: what messages call it, such as "rank 3".
            log: file for what it prints; written anew.
            environment: all of its environment.
            on_event: called with each event but the outcome.
            events_on_stdout: its events come on its standard output.

        Raises:
            OSError: the log cannot be written or the process not be started.
        """
        read_end, write_end = os.pipe()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_EVENT_LIMIT)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
        )
        try:
            with log.open("wb") as chatter:
                process = await asyncio.create_subprocess_exec(
                    *tethered(command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=write_end if events_on_stdout else chatter,
                    stderr=chatter,
                    pass_fds=() if events_on_stdout else (write_end,),
                    env=dict(environment) | {"FINETUNE_EVENTS_FD": str(1 if events_on_stdout else write_end)},
                    start_new_session=True,
                )
        except BaseException:
            transport.close()
            raise
        finally:
            os.close(write_end)
        return cls(process, name, log, on_event, reader, transport)

    @property
    def running(self) -> bool:
        """Whether it has not been seen to end yet."""
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; its helpers follow it."""
        if self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and every helper left in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> Ended:
        """Wait for its end, take its last events and clear its helpers away."""
        returncode = await self._process.wait()
        self.kill()
        # A helper that got away into another session may hold the pipe open: the wait is bounded.
        await asyncio.wait([self._events], timeout=_DRAIN_SECONDS)
        self._events.cancel()
        self._transport.close()
        return Ended(returncode, self._outcome, tail(self._log))

    async def stop(self, grace_seconds: float) -> None:
        """End it: SIGTERM, and SIGKILL to its whole session when it is still there after the grace."""
        if self.running:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
        self.kill()
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await self._process.wait()
        except TimeoutError:
            _LOG.error("%s does not end though killed: it is stuck in the kernel", self._name)

    async def _relay(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                _LOG.warning("%s sent an event of more than %d bytes: dropped", self._name, _EVENT_LIMIT)
                continue
            if not line:
                return
            try:
                event = parse_event(line)
            except ValidationError:
                _LOG.warning("%s sent a line that is no event: %.200r", self._name, line)
                continue
            if isinstance(event, Outcome):
                self._outcome = event
            else:
                self._on_event(event)


def tail(log: Path) -> list[str]:
    """The last lines of a log, without colours, progress bars and blank lines.

    A log that cannot be read has no lines: it only adds colour to a failure that is known otherwise.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = (_ANSI.sub("", line.rpartition("\r")[2]).rstrip() for line in text.split("\n"))
    return [line for line in lines if line][-_TAIL_LINES:]
