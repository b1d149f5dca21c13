"""Runs a command that cannot outlive the process that started it (Linux).

    python -m finetune_trainer.worker.tether PARENT_PID COMMAND...

A rank whose agent was killed with SIGKILL would otherwise go on holding its GPU, and
nobody would be left to stop it. The kernel's parent death signal survives `exec`, so a
small program in between sets it and turns into the command; doing the same in a hook
between fork and exec is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tethered(command: list[str]) -> list[str]:
    """The command line that runs `command` and kills it when the calling process dies.

    The child must be started from the main thread: the kernel ties it to the thread that forked.
    """
    return [sys.executable, "-P", "-m", "finetune_trainer.worker.tether", str(os.getpid()), *command]


def main(argv: list[str]) -> None:
    """Become the command `argv[1:]`, tied to the life of the process `argv[0]`."""
    parent, command = int(argv[0]), argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:  # it died before the signal was set
        return
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
