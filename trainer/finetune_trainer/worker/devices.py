"""GPUs and shared memory that this machine, or this container, offers."""

from __future__ import annotations

import os
from pathlib import Path

from finetune_trainer.config import ExitReason, RunConfig, RunError

_AMD = "0x1002"
_SHARED_MEMORY_LEAST = 512 * 2**20
"""Bytes. Containers get 64 MiB by default, in which collectives between GPUs fail at some later time."""


def visible_gpus(root: Path = Path("/")) -> int:
    """Count the GPUs whose device files are here.

    A container sees every GPU of its node in sysfs, but only its own in `/dev`.
    """
    dri = root / "dev/dri"
    drm = root / "sys/class/drm"
    amd = sum(_vendor(drm / node.name / "device/vendor") == _AMD for node in dri.glob("renderD*"))
    return amd or len(list((root / "dev").glob("nvidia[0-9]*")))


def _vendor(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a render node without a device, or one that is being reset
        return ""


def check_gpus(config: RunConfig, visible: int) -> None:
    """Compare the GPUs of this worker with those that the run wants of each.

    Raises:
        RunError: PreflightFailed, there are fewer.
    """
    wanted = config.workers.gpus_per_worker
    if visible < wanted:
        raise RunError(
            ExitReason.PREFLIGHT_FAILED,
            f"the run wants {wanted} GPUs a worker, and {visible} can be opened here",
            "look at the device plugin of this node, or set workers.gpusPerWorker to 0 to train on the CPU",
        )


def check_shared_memory(config: RunConfig, path: Path = Path("/dev/shm")) -> None:  # noqa: S108 - the mount itself
    """Make sure that several GPU ranks can talk to each other through shared memory.

    Raises:
        RunError: PreflightFailed, the mount is too small.
    """
    if config.workers.gpus_per_worker < 2 or not path.is_dir():
        return
    status = os.statvfs(path)
    size = status.f_frsize * status.f_blocks
    if size < _SHARED_MEMORY_LEAST:
        raise RunError(
            ExitReason.PREFLIGHT_FAILED,
            f"{path} has only {size // 2**20} MiB for {config.workers.gpus_per_worker} ranks",
            "raise workers.sharedMemory",
        )
