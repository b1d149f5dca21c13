"""The rank's voice: events to its agent, a heartbeat for the hang watch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from finetune_trainer.config import Event

EVENTS_FD = "FINETUNE_EVENTS_FD"
"""Environment variable: number of the inherited descriptor that events are written to."""

_BEAT_SECONDS = 0.5
"""Well below the least `retry.hangSeconds`, which is 1."""


class Emitter:
    """Writes events as JSON lines, and touches a file at every forward pass of training.

    The agent ends a rank whose heartbeat file has not moved for `retry.hangSeconds`; events come
    only every `logSteps`, far too seldom to tell a slow step from a hung collective. There is no
    heartbeat before training: downloading and loading a model takes as long as it takes.
    """

    def __init__(self, stream: TextIO, heartbeat: Path) -> None:
        self._stream = stream
        self._heartbeat = heartbeat

    @classmethod
    def open(cls, work: Path, rank: int) -> Emitter:
        """Take the descriptor named by FINETUNE_EVENTS_FD, or standard output without one."""
        descriptor = os.environ.get(EVENTS_FD)
        stream = os.fdopen(int(descriptor or 1), "w", buffering=1, encoding="utf-8", closefd=False)
        return cls(stream, work / f"heartbeat-{rank}")

    def __call__(self, event: Event) -> None:
        """Write one event; the line is handed over at once."""
        self._stream.write(event.model_dump_json(exclude={"worker"}) + "\n")
        self._stream.flush()

    def beat(self) -> None:
        """Say that this rank still moves."""
        self._heartbeat.touch()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Keep the heartbeat up from a thread, while something goes on that bounds itself."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(_BEAT_SECONDS):
                self.beat()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.beat()
