"""What is wrong with a job, where, and what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and list indices from the document's root."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True)
class Problem:
    """One fault of a job, wherever the job came from."""

    path: Path
    message: str
    """What is wrong, as the end of a sentence that begins with the path."""
    suggestion: str = ""
    """What to write instead; empty where nothing better than the message is known."""
    line: int | None = None
    """Where the fault is, from 1, if not simply where the path is."""


@dataclass(frozen=True)
class Fault:
    """One fault at its line of a file."""

    file: str
    line: int
    """From 1."""
    path: str
    """Like `spec.dataset.sources[1].uri`; empty where the fault is the file's."""
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        subject = f"{self.path}: " if self.path else ""
        suggestion = f"; {self.suggestion}" if self.suggestion else ""
        return f"{self.file}:{self.line}: {subject}{self.message}{suggestion}"


def spell(path: Path) -> str:
    """Write a path as people read it: `spec.dataset.sources[1].uri`, `metadata.labels["a.b/c"]`."""
    spelled = ""
    for step in path:
        if isinstance(step, int):
            spelled += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            spelled += f".{step}" if spelled else step
        else:
            spelled += f'["{printable(step)}"]'
    return spelled


def printable(text: str, limit: int = 60) -> str:
    """Shorten foreign text and escape what would break the line or the terminal."""
    shown = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text[:limit]
    )
    return f"{shown}..." if len(text) > limit else shown
