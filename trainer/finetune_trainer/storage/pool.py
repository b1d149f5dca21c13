"""Threads for transfers, which give up together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS = 4
"""Files on their way up, or ranges on their way down, at the same time."""


class Pool:
    """Threads that stop at the first failure or interruption, instead of finishing what is pointless."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(WORKERS, "storage")
        self.stopped = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def run(self, call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply `call` to all items; raises what the first failing one raised."""
        futures = [self._executor.submit(call, item) for item in items]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            self.stopped.set()
            for future in futures:
                future.cancel()
            wait(futures)
            raise
