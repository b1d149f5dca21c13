"""What agents say to each other over the control channel: one JSON object a line.

A worker says Hello, then Alive every few seconds, Report when its ranks ended, Stop when
it was asked to stop. Worker 0 answers Refused or, when all are present, Start; then Alive,
Stop for all, and in the end the Verdict that every agent reports as its own outcome.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from finetune_trainer.config import Outcome

LINE_LIMIT = 64 * 1024
"""Longest line in bytes that is read from a peer."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Hello(_Message):
    """Who connects. The uid is known to the run's own workers only, so it also keeps strangers out."""

    kind: Literal["hello"] = "hello"
    uid: str
    attempt: int
    index: int


class Alive(_Message):
    """Nothing new, still here."""

    kind: Literal["alive"] = "alive"


class Stop(_Message):
    """Every rank of every worker shall checkpoint at the next step boundary and leave."""

    kind: Literal["stop"] = "stop"


class Report(_Message):
    """How a worker's ranks ended: all of them gracefully, or one of them in a failure."""

    kind: Literal["report"] = "report"
    outcome: Outcome
    secondary: bool = False
    """The failure is probably the echo of another one, such as a peer's closed connection."""


class Refused(_Message):
    """The Hello is not welcome."""

    kind: Literal["refused"] = "refused"
    reason: str


class Start(_Message):
    """All workers are present; rank 0 will serve torch's store at this address."""

    kind: Literal["start"] = "start"
    master_address: str
    master_port: int


class Verdict(_Message):
    """The outcome of the whole gang: its root cause, the same for all."""

    kind: Literal["verdict"] = "verdict"
    outcome: Outcome


Message = Hello | Alive | Stop | Report | Refused | Start | Verdict
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Read the peer's next message; None when it closed the connection.

    Raises:
        ValueError: the line is no message of this protocol, or longer than the reader's limit.
        OSError: the connection broke.
    """
    line = await reader.readline()
    return _ADAPTER.validate_json(line) if line.endswith(b"\n") else None


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message to the peer. A peer that no longer reads is found by its silence, not here."""
    if not writer.is_closing():
        writer.write(message.model_dump_json().encode() + b"\n")
