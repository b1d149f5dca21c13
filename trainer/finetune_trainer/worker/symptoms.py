"""Texts in a dying rank's log that say what it died of.

The wording is that of PyTorch, ROCm's runtime, RCCL, gloo and the kernel, as seen in their
sources and in reports. Order matters: a rank that ran out of memory also tears its peers'
connections down, so the more telling texts come first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from finetune_trainer.config import ExitReason


@dataclass(frozen=True)
class Symptom:
    """One text and what it means."""

    pattern: re.Pattern[str]
    reason: ExitReason
    hint: str
    secondary: bool = False
    """Usually the echo of a failure elsewhere."""


def _symptom(pattern: str, reason: ExitReason, hint: str, *, secondary: bool = False) -> Symptom:
    return Symptom(re.compile(pattern), reason, hint, secondary)


SYMPTOMS = (
    _symptom(
        r"(HIP|CUDA) out of memory|HSA_STATUS_ERROR_OUT_OF_RESOURCES|hipErrorOutOfMemory",
        ExitReason.OUT_OF_MEMORY,
        "lower training.microBatchSize or dataset.maxLength, raise deepspeed.stage, or use QLoRA",
    ),
    _symptom(
        r"failed to extend /dev/shm|unable to (allocate|open) shared memory|Bus error",
        ExitReason.OUT_OF_MEMORY,
        "raise workers.sharedMemory: /dev/shm is full",
    ),
    _symptom(
        r"DefaultCPUAllocator: (can't allocate|not enough) memory|Cannot allocate memory"
        r"|std::bad_alloc|MemoryError",
        ExitReason.OUT_OF_MEMORY,
        "the worker's own memory is used up: raise workers.resources, or lower training.microBatchSize",
    ),
    _symptom(
        r"GPU Hang|HW Exception by GPU|Memory access fault by GPU|HSA_STATUS_ERROR|uncorrectable ECC",
        ExitReason.GPU_FAULT,
        "the GPU failed: a new attempt continues from the last checkpoint; if it comes again, drain the node",
    ),
    _symptom(
        r"no kernel image is available|invalid device function|Illegal instruction",
        ExitReason.PREFLIGHT_FAILED,
        "this image has no code for this machine's GPU or processor: use an image built for it",
    ),
    _symptom(
        r"/dev/kfd.*[Pp]ermission denied|[Pp]ermission denied.*/dev/kfd|No HIP GPUs are available",
        ExitReason.PREFLIGHT_FAILED,
        "the rank may not open the GPU: set workers.supplementalGroups to the node's render and video groups",
    ),
    _symptom(
        r"No space left on device|Disk quota exceeded",
        ExitReason.STORAGE_UNAVAILABLE,
        "free some disk space in the work folder or in the output",
    ),
    _symptom(
        r"[Ww]atchdog caught collective operation timeout|Timed out waiting \d+ ?ms"
        r"|wait timeout after \d+ ?ms",
        ExitReason.COLLECTIVE_TIMEOUT,
        "one rank stopped taking part: look at the logs of the other workers and at the network between them",
        secondary=True,
    ),
    _symptom(
        r"Connection closed by peer|[Cc]onnection reset by peer|Broken pipe|ncclRemoteError|ncclSystemError"
        r"|remote process exited|DistNetworkError|Socket [Tt]imeout|recvValue failed|sendBytes failed",
        ExitReason.COLLECTIVE_TIMEOUT,
        "another rank went away: look at the logs of the other workers",
        secondary=True,
    ),
)


def find(lines: list[str]) -> tuple[Symptom, str] | None:
    """The most telling symptom in some lines of a log, and the last line that shows it."""
    for symptom in SYMPTOMS:
        for line in reversed(lines):
            if symptom.pattern.search(line):
                return symptom, line
    return None
