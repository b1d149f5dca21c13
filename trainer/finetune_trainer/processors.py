"""The processor cores of this process: how many may compute at once."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: its CPU affinity, cut down to the container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):  # no container, or the first version of cgroups
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
