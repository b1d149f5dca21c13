"""Work on all cores, in order, with a bounded number of blocks under way."""

from __future__ import annotations

import collections
import gc
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.data.formats import Format
from finetune_trainer.data.readers import Block
from finetune_trainer.data.work import Plan, Result, Worker
from finetune_trainer.processors import available_cores

MOST = 32
"""Processes at most: beyond these, cutting files into blocks is what takes the time."""


@dataclass(frozen=True, slots=True)
class Task:
    """A block with what is known about its file; `file` is its place in the list of files."""

    block: Block
    file: int
    name: str
    form: Format
    array: bool
    """The block's numbers rest on the syntax of the blocks before it."""
    encode: bool
    """Not only look for faults."""


def default_processes() -> int:
    """Processes that data is spread over where nobody says how many."""
    return min(available_cores(), MOST)


_worker: Worker | None = None


def _start(plan: Plan) -> None:
    global _worker
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Rows leave no cycles behind; looking for them after every few hundred objects costs a tenth of the time.
    gc.set_threshold(100_000)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = Worker(plan)


def _end_with_parent() -> None:
    """A parent that is killed cannot say so, and its queue would be waited for for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _process(task: Task, previews: int) -> Result:
    assert _worker is not None
    return _worker.process(task.block, task.name, task.form, previews=previews, encode=task.encode)


class Pool:
    """Processes blocks: a single one here, so that small data needs no processes, several in a pool.

    Args:
        plan: what to do.
        worker: does it in this process.
        previews: rows to preview, over all blocks.
        processes: how many; one means this one.
    """

    def __init__(self, plan: Plan, worker: Worker, previews: int, processes: int) -> None:
        self._plan = plan
        self._local = worker
        self._previews = previews
        self._processes = processes

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield each task with its result, in order.

        Raises:
            RunError: OutOfMemory, a process was killed.
        """
        waiting = iter(tasks)
        first = list(itertools.islice(waiting, 2))
        following = itertools.chain(first, waiting)
        if self._processes > 1 and len(first) > 1:
            yield from self._spread(following)
            return
        for task in following:
            result = self._local.process(
                task.block, task.name, task.form, previews=self._previews, encode=task.encode
            )
            self._previews -= len(result.previews)
            yield task, result

    def _spread(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        # A tokenizer makes and frees small objects by the million; glibc (2.35 and newer) asks for huge
        # pages for them if it finds this when a process starts, which makes it a seventh faster.
        os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        executor = ProcessPoolExecutor(
            self._processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(self._plan,),
        )
        running: collections.deque[tuple[Task, Future[Result]]] = collections.deque()
        try:
            for task in tasks:
                running.append((task, executor.submit(_process, task, self._previews)))
                if len(running) > 2 * self._processes:
                    yield self._finished(*running.popleft())
            while running:
                yield self._finished(*running.popleft())
        except BrokenProcessPool:
            raise RunError(
                ExitReason.OUT_OF_MEMORY,
                "a process that prepares data was killed, most likely for want of memory",
                "give the prepare stage more memory",
            ) from None
        finally:
            # On a signal the stage has to be gone in a moment. Python 3.14 has a public way to do this.
            for process in list((executor._processes or {}).values()):
                process.terminate()
            executor.shutdown(wait=True, cancel_futures=True)

    def _finished(self, task: Task, future: Future[Result]) -> tuple[Task, Result]:
        result = future.result()
        result.previews = result.previews[: self._previews]
        self._previews -= len(result.previews)
        return task, result
