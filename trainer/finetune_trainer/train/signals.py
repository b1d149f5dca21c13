"""SIGTERM means: finish the step, take a checkpoint, leave."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Set by SIGTERM or SIGINT; the loop reads it once per optimizer step."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Take over both signals for this process."""
        signal.signal(signal.SIGTERM, self._set)
        signal.signal(signal.SIGINT, self._set)

    def _set(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True
