"""The agent's event stream on its standard output, and the state that it adds up to."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time

from finetune_trainer.config import Event, Outcome
from finetune_trainer.worker.progress import Progress

_LOG = logging.getLogger(__name__)
_FLUSH_SECONDS = 10.0


class EventStream:
    """Writes events as JSON lines and keeps the progress that they tell of.

    A thread does the writing: a reader that is suspended or slow must not stop the agent, whose
    silence the other workers would take for its death.

    Args:
        progress: the state before the first event; its worker index is filled into every event
            but an outcome, which names the worker that it is about.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="events", daemon=True)
        self._writer.start()

    def progress(self) -> Progress:
        """The state after the newest event. May be called from any thread."""
        return self._progress

    def emit(self, event: Event) -> None:
        """Take in one event, to be written soon."""
        if not isinstance(event, Outcome):
            event = event.model_copy(update={"worker": self._progress.worker})
        self._progress = self._progress.after(event, time.time())
        self._lines.put(event.model_dump_json())

    def close(self) -> None:
        """Wait until everything is written, or for ten seconds if nobody reads."""
        self._lines.put(None)
        self._writer.join(_FLUSH_SECONDS)

    def _write(self) -> None:
        # Past Python's own buffer: its lock, held in a blocked write, would make leaving impossible.
        descriptor = sys.stdout.fileno()
        try:
            while (line := self._lines.get()) is not None:
                rest = f"{line}\n".encode()
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        except OSError as error:  # the run goes on: its state is still served, and told in the end
            _LOG.warning("nobody reads the events any more: %s", error)
