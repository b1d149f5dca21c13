"""The run's own folder on this machine: its lock, its attempts, the logs and work of the newest one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from finetune_trainer.config import ExitReason, RunError


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")

    attempts: int = 0
    """Attempts begun so far."""
    generation: int = 1
    """Counts the times that the job was begun anew."""


class RunFolder:
    """`<state>/runs/<name>-<uid>`, held by one process at a time.

    Use it as a context manager. The lock is the kernel's: it is gone with the process, however
    that ended.

    Args:
        name: the job's name.
        uid: names what is learned, see `run_config.local_uid`.
    """

    def __init__(self, name: str, uid: str) -> None:
        self.path = state_folder() / "runs" / f"{name}-{uid}"
        self._uid = uid
        self._lock: IO[str] | None = None
        self._record = _Record()

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            RunError: PreflightFailed, another process holds it.
            OSError: the folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise RunError(
                ExitReason.PREFLIGHT_FAILED,
                f"this job is running on this machine already, in process {holder}",
                "wait for it, or stop it with Ctrl-C where it runs",
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        self._record = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def uid(self) -> str:
        """Names the run's folder in the output; another one after every `renew`."""
        generation = self._record.generation
        return self._uid if generation == 1 else f"{self._uid}-{generation}"

    @property
    def attempts(self) -> int:
        """Attempts begun so far."""
        return self._record.attempts

    def renew(self) -> None:
        """Begin anew, under another uid; nothing is deleted from the output."""
        self._write(_Record(generation=self._record.generation + 1))

    def begin_attempt(self) -> Path:
        """Count one more attempt; returns its empty folder. Those of earlier attempts are deleted."""
        self._write(self._record.model_copy(update={"attempts": self._record.attempts + 1}))
        self.clear()
        folder = self.path / f"attempt-{self._record.attempts}"
        folder.mkdir()
        return folder

    def clear(self) -> None:
        """Delete the work of all attempts; their number stays known."""
        for folder in self.path.glob("attempt-*"):
            shutil.rmtree(folder)

    def _read(self) -> _Record:
        try:
            return _Record.model_validate_json((self.path / "record.json").read_bytes())
        except (
            FileNotFoundError,
            ValidationError,
        ):  # damaged by a crash of the machine: begin to count again
            return _Record()

    def _write(self, record: _Record) -> None:
        new = self.path / "record.json.new"
        new.write_text(json.dumps(record.model_dump()), encoding="utf-8")
        new.replace(self.path / "record.json")
        self._record = record


def state_folder() -> Path:
    """Where runs keep their work: `FINETUNE_STATE`, else the user's state folder."""
    named = os.environ.get("FINETUNE_STATE")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "finetune-operator"
