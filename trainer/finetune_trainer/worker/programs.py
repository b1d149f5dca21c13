"""The programs that an agent starts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field


def _module(name: str) -> list[str]:
    # -P: a folder of the user's that is called like a library must not be imported in its place.
    return [sys.executable, "-P", "-m", name]


@dataclass(frozen=True)
class Programs:
    """Command lines without arguments; each is called with `--config FILE --work DIR`."""

    preflight: list[str] = field(default_factory=lambda: _module("finetune_trainer.worker.preflight"))
    rank: list[str] = field(default_factory=lambda: _module("finetune_trainer.train"))
    publish: list[str] = field(default_factory=lambda: _module("finetune_trainer.artifact.publish"))
