"""What an agent sees of the control channel, whichever end of it it holds."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from finetune_trainer.config import ExitReason, Outcome, RunConfig, RunError
from finetune_trainer.worker.messages import Report, Start


@dataclass(frozen=True)
class Endpoint:
    """Where worker 0 listens for the other agents."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT` or `[IPV6]:PORT`.

        Raises:
            ValueError: it is neither.
        """
        host, separator, port = text.rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"not HOST:PORT: {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Timing:
    """Seconds that govern the control channel."""

    heartbeat: float = 2.0
    silent: float = 6.0
    """Without a sign of life for so long, a worker is suspected when another one reports an echo."""
    lost: float = 30.0
    """Without a sign of life for so long, a worker is lost. A closed connection is noticed at once."""
    settle: float = 8.0
    """How long a secondary failure waits for its cause to be known; longer than `silent`."""
    hello: float = 5.0
    """How long a stranger may keep a connection open before saying who it is."""
    linger: float = 10.0
    """How long an early failure is offered to workers that have not joined yet."""


class Channel(ABC):
    """The control channel of one agent.

    `run` keeps it alive as a task; everything else is called from the same event loop.

    Attributes:
        started: resolves when all workers are present.
        verdict: resolves, once, to the outcome of the gang. It can come before `started`.
        stop_requested: set when the ranks shall checkpoint and leave.
    """

    def __init__(self, config: RunConfig, timing: Timing) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._timing = timing
        self.started: asyncio.Future[Start] = loop.create_future()
        self.verdict: asyncio.Future[Outcome] = loop.create_future()
        self.stop_requested = asyncio.Event()

    @abstractmethod
    async def run(self) -> None:
        """Serve the channel until cancelled. `verdict` is set whatever happens to the connections.

        Raises:
            RunError: the channel cannot be opened at all.
        """

    @abstractmethod
    def report(self, report: Report) -> None:
        """Tell how this worker's ranks ended."""

    @abstractmethod
    def request_stop(self) -> None:
        """Ask that every rank of every worker checkpoints at the same step and leaves."""

    @abstractmethod
    async def linger(self) -> None:
        """After an early failure: wait, bounded, until it is known wherever it has to be."""

    def give_up(self, outcome: Outcome) -> None:
        """Take this as the verdict, whatever the other workers are doing."""
        self._decide(outcome)

    def _decide(self, outcome: Outcome) -> None:
        if not self.verdict.done():
            self.verdict.set_result(outcome)


def stopped_before_start() -> Outcome:
    """The outcome of a run that was asked to stop while its workers still gathered."""
    return Outcome(reason=ExitReason.PREEMPTED, message="stopped before training began")


def free_port() -> int:
    """A TCP port that is free on this machine now."""
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def port_in_use(endpoint: Endpoint, purpose: str, error: OSError) -> RunError:
    """The one-line error for an address that cannot be listened on."""
    return RunError(
        ExitReason.PREFLIGHT_FAILED,
        f"cannot listen on {endpoint} for {purpose}: {error.strerror or error}",
        "choose another port, or stop the program that uses this one",
    )
