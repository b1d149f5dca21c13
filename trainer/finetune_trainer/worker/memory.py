"""Whether the kernel's out-of-memory killer was here."""

from __future__ import annotations

from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int:
    """Processes killed so far for lack of memory: in this container's cgroup, else on this machine.

    Zero where the kernel does not say.
    """
    for path in (_cgroup(root) / "memory.events", root / "proc/vmstat"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _cgroup(root: Path) -> Path:
    """The folder of this process's cgroup (version 2; in a container usually the mount's root)."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return mount
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return mount / own if (mount / own).is_dir() else mount
