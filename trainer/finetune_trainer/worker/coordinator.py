"""Worker 0's end of the control channel: calls the roll, starts the gang, finds the root cause."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from finetune_trainer.config import ExitReason, Outcome, RunConfig
from finetune_trainer.worker.channel import (
    Channel,
    Endpoint,
    Timing,
    free_port,
    port_in_use,
    stopped_before_start,
)
from finetune_trainer.worker.jury import Jury
from finetune_trainer.worker.messages import (
    LINE_LIMIT,
    Alive,
    Hello,
    Message,
    Refused,
    Report,
    Start,
    Stop,
    Verdict,
    receive,
    send,
)

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
_BACKLOG = 1024


@dataclass
class _Peer:
    writer: asyncio.StreamWriter
    last_seen: float


class Coordinator(Channel):
    """Listens for the agents of workers 1 to n-1 and speaks for worker 0 itself.

    Args:
        config: the run; `workers.replicas` says how many are awaited, `retry.rendezvous_seconds` how long.
        endpoint: where to listen; on every interface unless its host is loopback.
        timing: seconds that govern the channel.
    """

    def __init__(self, config: RunConfig, endpoint: Endpoint, timing: Timing) -> None:
        super().__init__(config, timing)
        self._endpoint = endpoint
        self._peers: dict[int, _Peer] = {}
        self._told: set[int] = set()
        self._all_told = asyncio.Event()
        self._jury = Jury(config.workers.replicas, timing.settle)

    async def run(self) -> None:
        """See Channel; with one worker nothing is listened on."""
        if self._config.workers.replicas == 1:
            await self._watch()
            return
        host = self._endpoint.host if self._endpoint.is_loopback else None
        try:
            server = await asyncio.start_server(
                self._serve, host, self._endpoint.port, limit=LINE_LIMIT, backlog=_BACKLOG
            )
        except OSError as error:
            raise port_in_use(self._endpoint, "the other workers", error) from error
        try:
            await self._watch()
        finally:
            server.close()
            for peer in self._peers.values():
                peer.writer.close()

    def report(self, report: Report) -> None:
        """See Channel."""
        self._jury.report(0, report, self._now())
        self._weigh()

    def request_stop(self) -> None:
        """See Channel."""
        self._jury.stop()
        self.stop_requested.set()
        self._tell(Stop())
        if not self.started.done():
            self._decide(stopped_before_start())
        self._weigh()

    async def linger(self) -> None:
        """See Channel."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.linger):
                await self._all_told.wait()

    async def _watch(self) -> None:
        """Call the roll, then keep time: heartbeats out, silence noticed, doubts settled."""
        started_at = self._now()
        beat_at = started_at
        while True:
            now = self._now()
            if not self.started.done():
                self._call_roll(now - started_at)
            if now >= beat_at:
                self._tell(Alive())
                beat_at = now + self._timing.heartbeat
            if self.started.done():
                for index, peer in list(self._peers.items()):
                    if now - peer.last_seen > self._timing.lost:
                        self._drop(index)
            self._weigh()
            await asyncio.sleep(_TICK_SECONDS)

    def _call_roll(self, waited: float) -> None:
        replicas = self._config.workers.replicas
        absent = [index for index in range(1, replicas) if index not in self._peers]
        if not absent:
            address = "127.0.0.1" if replicas == 1 else self._endpoint.host
            start = Start(master_address=address, master_port=free_port())
            self.started.set_result(start)
            self._tell(start)
        elif waited >= self._config.retry.rendezvous_seconds:
            self._decide(_absentees(absent, replicas, waited))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from Hello to its end. Nothing that arrives here is trusted."""
        index: int | None = None
        try:
            async with asyncio.timeout(self._timing.hello):
                hello = await receive(reader)
            index = self._admit(hello, writer)
            while index is not None and (message := await receive(reader)) is not None:
                self._hear(index, message)
        except (ValueError, TimeoutError, OSError) as error:
            _LOG.warning("connection of %s ended: %s", _name(index, writer), str(error).splitlines()[:1])
        finally:
            writer.close()
            if index is not None:
                self._drop(index)

    def _admit(self, hello: Message | None, writer: asyncio.StreamWriter) -> int | None:
        """The index of a welcome worker; None where the connection is not of this run."""
        if not isinstance(hello, Hello):
            _LOG.warning("connection of %s ended: it did not say who it is", _name(None, writer))
            return None
        reason = self._objection(hello)
        if reason:
            _LOG.warning("refused worker %d: %s", hello.index, reason)
            send(writer, Refused(reason=reason))
            return None
        self._peers[hello.index] = _Peer(writer, self._now())
        if self.stop_requested.is_set():
            send(writer, Stop())
        self._weigh()
        return hello.index

    def _objection(self, hello: Hello) -> str:
        replicas = self._config.workers.replicas
        if hello.uid != self._config.uid:
            return "it belongs to another run"
        if hello.attempt != self._config.attempt:
            return f"it belongs to attempt {hello.attempt}, this is attempt {self._config.attempt}"
        if not 0 < hello.index < replicas:
            return f"its index {hello.index} is not one of 1 to {replicas - 1}"
        if hello.index in self._peers:
            return f"a worker with index {hello.index} is present already"
        if self.started.done():
            return "the run has started without it"
        return ""

    def _hear(self, index: int, message: Message) -> None:
        peer = self._peers.get(index)
        if peer is None:  # dropped for its silence, and now it speaks
            return
        peer.last_seen = self._now()
        if isinstance(message, Report):
            outcome = message.outcome.model_copy(update={"worker": index})
            self._jury.report(index, message.model_copy(update={"outcome": outcome}), self._now())
            self._weigh()
        elif isinstance(message, Stop) and not self.stop_requested.is_set():
            self.request_stop()

    def _drop(self, index: int) -> None:
        """Forget a worker whose connection is gone. Before the start it may simply come again."""
        peer = self._peers.pop(index, None)
        if peer is not None:
            peer.writer.close()
            if self.started.done():
                self._jury.lost(index)
                self._weigh()

    def _weigh(self) -> None:
        now = self._now()
        silent = [i for i, peer in self._peers.items() if now - peer.last_seen > self._timing.silent]
        outcome = self._jury.decide(now, silent)
        if outcome is not None:
            self._decide(outcome)
        if self.verdict.done():
            for index in self._peers.keys() - self._told:
                send(self._peers[index].writer, Verdict(outcome=self.verdict.result()))
                self._told.add(index)
            if len(self._told) == self._config.workers.replicas - 1:
                self._all_told.set()

    def _tell(self, message: Message) -> None:
        for peer in self._peers.values():
            send(peer.writer, message)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _name(index: int | None, writer: asyncio.StreamWriter) -> str:
    return f"worker {index}" if index is not None else str(writer.get_extra_info("peername"))


def _absentees(absent: list[int], replicas: int, waited: float) -> Outcome:
    names = ", ".join(str(index) for index in absent[:20]) + (" ..." if len(absent) > 20 else "")
    return Outcome(
        reason=ExitReason.RENDEZVOUS_TIMEOUT,
        message=f"{len(absent)} of {replicas} workers did not join within {waited:.0f} s; absent: {names}",
        hint="look at the absent workers: not scheduled, still pulling an image, or cut off by the network",
    )
