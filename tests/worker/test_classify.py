from __future__ import annotations

import dataclasses

import pytest

from finetune_trainer.config import ExitReason, Outcome
from finetune_trainer.worker.classify import Circumstances, classify, traceback_of
from finetune_trainer.worker.process import Ended

START = "Traceback (most recent call last):"
DUMP = "Current thread 0x00007f3a (most recent call first):"
OTHER = "Thread 0x1 (most recent call first):"
HERE = Circumstances("rank 3", worker=1, rank=3, step=40)
HIP = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of"
HANG = "HW Exception by GPU node-3 (Agent handle: 0x55) reason :GPU Hang"
KERNEL = "RuntimeError: HIP error: no kernel image is available for execution on the device"
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.2]:3"
WATCHDOG = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)"
NCCL = "torch.distributed.DistBackendError: NCCL error ... ncclRemoteError: A call failed possibly due to"


@pytest.mark.parametrize(
    ("code", "tail", "change", "reason", "secondary", "text"),
    [
        (0, [], {}, ExitReason.SUCCEEDED, False, ""),
        (1, [HIP], {}, ExitReason.OUT_OF_MEMORY, False, "HIP out of memory"),
        (1, [HIP, GLOO], {}, ExitReason.OUT_OF_MEMORY, False, "HIP out of memory"),
        (1, ["DefaultCPUAllocator: can't allocate memory"], {}, ExitReason.OUT_OF_MEMORY, False, ""),
        (-7, ["Bus error (core dumped)"], {}, ExitReason.OUT_OF_MEMORY, False, "Bus error"),
        (-6, [HANG], {}, ExitReason.GPU_FAULT, False, "GPU Hang"),
        (1, [KERNEL], {}, ExitReason.PREFLIGHT_FAILED, False, "no kernel image"),
        (1, ["OSError: No space left on device"], {}, ExitReason.STORAGE_UNAVAILABLE, False, "No space"),
        (1, [GLOO], {}, ExitReason.COLLECTIVE_TIMEOUT, True, "Connection closed by peer"),
        (-6, [WATCHDOG], {}, ExitReason.COLLECTIVE_TIMEOUT, True, "Watchdog"),
        (1, [NCCL], {}, ExitReason.COLLECTIVE_TIMEOUT, True, "ncclRemoteError"),
        (1, ["ValueError: no such thing"], {}, ExitReason.INTERNAL, False, "code 1: ValueError: no such"),
        (1, [], {}, ExitReason.INTERNAL, False, "it said nothing"),
        (20, ["boom"], {}, ExitReason.NON_FINITE_LOSS, False, "exit code 20"),
        (21, [], {}, ExitReason.PREEMPTED, False, ""),
        (-9, [], {}, ExitReason.INTERNAL, False, "was killed by signal 9 (SIGKILL)"),
        (-9, [], {"oom_killed": True}, ExitReason.OUT_OF_MEMORY, False, "killed by the kernel"),
        (-11, [], {}, ExitReason.INTERNAL, False, "signal 11 (SIGSEGV)"),
        (-40, [], {}, ExitReason.INTERNAL, False, "signal 40"),
        (-15, [], {"stopping": True}, ExitReason.PREEMPTED, False, ""),
        (-15, [], {}, ExitReason.INTERNAL, False, "signal 15"),
        (-6, [GLOO], {"hung_seconds": 900.0}, ExitReason.COLLECTIVE_TIMEOUT, False, "no progress for 900 s"),
    ],
)  # fmt: skip
def test_an_end_without_words(
    code: int, tail: list[str], change: dict[str, object], reason: ExitReason, secondary: bool, text: str
) -> None:
    report = classify(Ended(code, None, tail), dataclasses.replace(HERE, **change))  # type: ignore[arg-type]
    assert report.outcome.reason is reason
    assert report.secondary is secondary
    assert text in report.outcome.message
    assert (report.outcome.worker, report.outcome.step) == (1, 40)
    if reason not in (ExitReason.SUCCEEDED, ExitReason.PREEMPTED):
        assert report.outcome.message.startswith("rank 3 (worker 1)")
        assert report.outcome.rank == 3


@pytest.mark.parametrize(
    ("said", "code", "reason", "secondary"),
    [
        (Outcome(reason=ExitReason.SUCCEEDED), -11, ExitReason.SUCCEEDED, False),
        (Outcome(reason=ExitReason.PREEMPTED, step=41), 21, ExitReason.PREEMPTED, False),
        (Outcome(reason=ExitReason.STORAGE_DENIED, message="no"), 12, ExitReason.STORAGE_DENIED, False),
        (Outcome(reason=ExitReason.INTERNAL, message="odd"), 23, ExitReason.INTERNAL, False),
        (Outcome(reason=ExitReason.INTERNAL, message=GLOO), 23, ExitReason.COLLECTIVE_TIMEOUT, True),
        (Outcome(reason=ExitReason.INTERNAL, traceback=[GLOO]), 23, ExitReason.COLLECTIVE_TIMEOUT, True),
        (Outcome(reason=ExitReason.INTERNAL, traceback=[HIP]), 23, ExitReason.OUT_OF_MEMORY, False),
        (Outcome(reason=ExitReason.COLLECTIVE_TIMEOUT), 19, ExitReason.COLLECTIVE_TIMEOUT, True),
        (Outcome(reason=ExitReason.OUT_OF_MEMORY, traceback=[GLOO]), 17, ExitReason.OUT_OF_MEMORY, False),
    ],
)
def test_its_own_words_count_most(said: Outcome, code: int, reason: ExitReason, secondary: bool) -> None:
    report = classify(Ended(code, said, ["chatter"]), HERE)
    assert report.outcome.reason is reason
    assert report.secondary is secondary
    assert report.outcome.rank == 3
    assert report.outcome.step == (said.step or 40)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["x", START, "y", "Error"], [START, "y", "Error"]),
        ([START, "1", START, "2"], [START, "2"]),
        ([START, "1", OTHER, "2", DUMP, *"345", "Extension modules: x"], [DUMP, *"345"]),
        ([DUMP, *map(str, range(50))], [DUMP, *map(str, range(29))]),
        ([str(number) for number in range(50)], [str(number) for number in range(20, 50)]),
    ],
)  # fmt: skip
def test_traceback_of(lines: list[str], kept: list[str]) -> None:
    assert traceback_of(lines) == kept


IN_LOADER = '  File "/lib/finetune/data.py", line 7 in read'
IN_STEP = '  File "/lib/finetune/step.py", line 9 in step'
IN_COLLECTIVE = '  File "/lib/torch/distributed/distributed_c10d.py", line 2932 in all_reduce'


@pytest.mark.parametrize(
    ("lines", "waits"),
    [
        ([], False),
        (["Fatal Python error: Aborted", DUMP, IN_COLLECTIVE, IN_STEP], True),
        (["Fatal Python error: Aborted", DUMP, IN_LOADER, IN_STEP], False),
        ([OTHER, IN_COLLECTIVE, DUMP, IN_LOADER], False),
        ([IN_COLLECTIVE], False),
        ([DUMP, *[IN_LOADER] * 4, IN_COLLECTIVE], False),
    ],
)
def test_a_rank_that_waits_for_others_is_not_the_cause(lines: list[str], waits: bool) -> None:
    report = classify(Ended(-6, None, lines), dataclasses.replace(HERE, hung_seconds=9.0))
    assert report.outcome.reason is ExitReason.COLLECTIVE_TIMEOUT
    assert report.secondary is waits
