"""The agent's event stream on its standard output, and the state that it adds up to."""

from __future__ import annotations

import logging
import os
import sys
import time

from finetune_trainer.config import Event, Outcome
from finetune_trainer.worker.progress import Progress

_LOG = logging.getLogger(__name__)


class EventStream:
    """Writes events as JSON lines and keeps the progress that they tell of.

    Args:
        progress: the state before the first event; its worker index is filled into every event
            but an outcome, which names the worker that it is about.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._broken = False

    def progress(self) -> Progress:
        """The state after the newest event. May be called from any thread."""
        return self._progress

    def emit(self, event: Event) -> None:
        """Write one event. A reader that went away does not end the run: the state is kept on."""
        if not isinstance(event, Outcome):
            event = event.model_copy(update={"worker": self._progress.worker})
        self._progress = self._progress.after(event, time.time())
        if self._broken:
            return
        try:
            sys.stdout.write(event.model_dump_json() + "\n")
            sys.stdout.flush()
        except OSError as error:
            self._broken = True
            _LOG.warning("nobody reads the events any more: %s", error)
            # What is still buffered would fail once more, loudly, when Python leaves.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
