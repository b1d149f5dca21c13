"""The end of the control channel of workers 1 to n-1."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from finetune_trainer.config import ExitReason, Outcome, RunConfig
from finetune_trainer.worker.channel import Channel, Endpoint, Timing, stopped_before_start
from finetune_trainer.worker.jury import lost_worker
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
_RETRY_SECONDS = 0.5
_RETRY_SECONDS_MOST = 5.0


class Member(Channel):
    """Connects to worker 0 and stays connected for the whole run.

    Args:
        config: the run; `retry.rendezvous_seconds` bounds the wait for worker 0 and for the start.
        index: this worker's index, from 1.
        endpoint: where worker 0 listens.
        timing: seconds that govern the channel.
    """

    def __init__(self, config: RunConfig, index: int, endpoint: Endpoint, timing: Timing) -> None:
        super().__init__(config, timing)
        self._index = index
        self._endpoint = endpoint
        self._writer: asyncio.StreamWriter | None = None
        self._reports: list[Report] = []

    async def run(self) -> None:
        """See Channel."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.retry.rendezvous_seconds
        reader, writer = await self._connect(deadline)
        if reader is None or writer is None:
            return
        self._writer = writer
        try:
            config = self._config
            send(writer, Hello(uid=config.uid, attempt=config.attempt, index=self._index))
            for report in self._reports:
                send(writer, report)
            async with asyncio.TaskGroup() as tasks:
                beats = tasks.create_task(self._beat(writer))
                await self._listen(reader)
                beats.cancel()
        finally:
            writer.close()

    def report(self, report: Report) -> None:
        """See Channel; said again as soon as worker 0 is reached."""
        self._reports.append(report)
        if self._writer is not None:
            send(self._writer, report)

    def request_stop(self) -> None:
        """See Channel."""
        self.stop_requested.set()
        if self._writer is not None:
            send(self._writer, Stop())
        else:
            self._decide(stopped_before_start())

    async def linger(self) -> None:
        """See Channel; worker 0 is told as soon as it can be reached, and nobody else has to be."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.linger):
                await asyncio.shield(self.verdict)

    async def _connect(
        self, deadline: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | tuple[None, None]:
        """Try until worker 0 answers: its name may not resolve yet, or its port be closed still."""
        loop = asyncio.get_running_loop()
        pause = _RETRY_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.open_connection(
                        self._endpoint.host, self._endpoint.port, limit=LINE_LIMIT
                    )
            except OSError as error:  # includes TimeoutError and failed name resolution
                if loop.time() + pause > deadline:
                    self._decide(self._unreachable(error))
                    return None, None
                _LOG.info("worker 0 at %s does not answer yet: %s", self._endpoint, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_SECONDS_MOST)

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            send(writer, Alive())
            await asyncio.sleep(self._timing.heartbeat)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hear worker 0 until it gives its verdict or is lost."""
        try:
            while not self.verdict.done():
                async with asyncio.timeout(self._timing.lost):
                    message = await receive(reader)
                if message is None:
                    break
                self._hear(message)
        except (ValueError, TimeoutError, OSError) as error:
            _LOG.warning("connection to worker 0 ended: %s", error)
        self._decide(self._without_worker_0())

    def _hear(self, message: Message) -> None:
        if isinstance(message, Start):
            if not self.started.done():
                self.started.set_result(message)
        elif isinstance(message, Stop):
            self.stop_requested.set()
        elif isinstance(message, Verdict):
            self._decide(message.outcome)
        elif isinstance(message, Refused):
            self._decide(
                Outcome(
                    worker=self._index,
                    reason=ExitReason.RENDEZVOUS_TIMEOUT,
                    message=f"worker 0 refused worker {self._index}: {message.reason}",
                    hint="a worker of an earlier attempt is still running, or two have the same index",
                )
            )

    def _without_worker_0(self) -> Outcome:
        """What this worker can say on its own: its own failure if it had one, else that worker 0 is gone."""
        own = next((report.outcome for report in self._reports if not report.secondary), None)
        if own is not None:
            return own
        if self.stop_requested.is_set():
            return Outcome(
                reason=ExitReason.PREEMPTED, message="worker 0 was cut off while the run was stopping"
            )
        return lost_worker(0)

    def _unreachable(self, error: OSError) -> Outcome:
        return Outcome(
            worker=self._index,
            reason=ExitReason.RENDEZVOUS_TIMEOUT,
            message=f"worker {self._index} could not reach worker 0 at {self._endpoint} within "
            f"{self._config.retry.rendezvous_seconds} s: {error.strerror or error or 'no answer'}",
            hint="look at worker 0: not scheduled, still pulling its image, or cut off by the network",
        )
