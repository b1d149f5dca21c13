"""Names below `<output.uri>/<uid>/`, the same in a folder and in a bucket."""

from __future__ import annotations

from dataclasses import dataclass

MANIFEST = "manifest.json"
"""Written last under every published prefix; without it nothing there counts."""


@dataclass(frozen=True)
class Layout:
    """Prefixes of one run, relative to the output URI, without leading or trailing slash."""

    uid: str

    @property
    def prepared(self) -> str:
        """Token arrays and `report.json` of the prepare stage."""
        return f"{self.uid}/prepared"

    @property
    def checkpoints(self) -> str:
        """The folder of all checkpoints."""
        return f"{self.uid}/checkpoints"

    def checkpoint(self, step: int) -> str:
        """The checkpoint taken after `step` optimizer steps (zero-padded, so names sort by step)."""
        return f"{self.checkpoints}/step-{step:08d}"

    def adapter(self, attempt: int) -> str:
        """The published adapter of one attempt: immutable, so that a late attempt cannot mix into it."""
        return f"{self.uid}/attempt-{attempt}/adapter"

    def merged(self, attempt: int) -> str:
        """The base model with that adapter merged in, where the job asks for it."""
        return f"{self.uid}/attempt-{attempt}/merged"
