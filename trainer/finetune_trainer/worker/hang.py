"""Notices that a rank stands still: pure, the clock comes in as numbers."""

from __future__ import annotations


class HangWatch:
    """Watches the signs of life of a worker's ranks.

    A rank is watched from its first sign of life on: loading a large model may take longer
    than any step, and says nothing meanwhile.

    Args:
        limit_seconds: how long a rank may go without a new sign.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._signs: dict[int, tuple[object, float]] = {}

    def sign(self, rank: int, mark: object, now: float) -> None:
        """A rank's latest sign of life.

        Args:
            rank: whose it is.
            mark: anything that changes with progress, such as its heartbeat file's time stamp. When a
                mark was written does not matter, only that it is another one than before: the clock
                of the machine may be set back, and a laptop may sleep.
            now: seconds of a steady clock.
        """
        known = self._signs.get(rank)
        if known is None or known[0] != mark:
            self._signs[rank] = (mark, now)

    def ended(self, rank: int) -> None:
        """The rank needs no watching any more."""
        self._signs.pop(rank, None)

    def stalled(self, now: float) -> list[int]:
        """The ranks that stand still beyond the limit, the one that does so for longest first."""
        late = [(at, rank) for rank, (_, at) in self._signs.items() if now - at > self._limit_seconds]
        return [rank for _, rank in sorted(late)]
