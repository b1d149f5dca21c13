"""The verdict on a dataset: what was read, what will be learned, what was left out and why."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

BINS = tuple(1 << power for power in range(5, 18))
"""Upper edges of the length histogram, in tokens."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Reason(_Part):
    """Rows left out for one reason."""

    reason: str
    count: int
    rows: list[str] = []
    """The first of them, as `file, row N`."""


class File(_Part):
    """One file that was read."""

    name: str
    format: str
    rows: int
    """Rows in it, kept or not."""


class SplitCount(_Part):
    """One split."""

    rows: int = 0
    examples: int = 0
    tokens: int = 0
    trained_tokens: int = 0


class Lengths(_Part):
    """Tokens of the examples."""

    shortest: int = 0
    median: int = 0
    mean: float = 0.0
    p90: int = 0
    p99: int = 0
    longest: int = 0
    histogram: list[tuple[int, int]] = []
    """Pairs: tokens at most, examples."""


class Warned(_Part):
    """Something that a person should know before training."""

    message: str
    hint: str


class Report(_Part):
    """Written as `report.json` beside the arrays."""

    version: Literal[1] = 1
    rows: int = 0
    """Rows kept."""
    examples: int = 0
    """Token sequences: more than rows where a template rewrites earlier turns."""
    tokens: int = 0
    trained_tokens: int = 0
    skipped: int = 0
    """Rows in which there is nothing to learn."""
    skipped_reasons: list[Reason] = []
    dropped: int = 0
    """Rows too long."""
    dropped_reasons: list[Reason] = []
    truncated: int = 0
    duplicates: int = 0
    """Rows equal to an earlier one, as the model sees them."""
    duplicates_across_splits: int = 0
    """Rows of validation and test that are trained as well."""
    splits: dict[str, SplitCount] = {}
    wanted_splits: list[str] = []
    """Splits with a share in the job."""
    lengths: Lengths = Lengths()
    scripts: dict[str, int] = {}
    """Rows with letters of each writing system."""
    files: list[File] = []
    left_out: list[str] = []
    """Files that are named as held-out splits beside others named for training."""
    template: str = ""
    end_of_turn: str = ""
    """What the last learned token of the first example is."""
    max_length: int = 0
    overlong: str = ""
    loss: str = ""
    with_system_prompt: int = 0
    with_tools: int = 0
    spelled_tokens: int = 0
    """Rows whose text spells a control token; it stays text."""
    warnings: list[Warned] = []
    dataset_hash: str = ""
    """SHA-256 over the rows as the model sees them, in order."""

    @property
    def trained_share(self) -> float:
        """Learned tokens by all tokens."""
        return self.trained_tokens / self.tokens if self.tokens else 0.0


def lengths(values: npt.NDArray[np.int64]) -> Lengths:
    """Summarise the lengths of examples, int64 `[examples]`."""
    if not len(values):
        return Lengths()
    edges = [edge for edge in BINS if edge < values.max()]
    edges.append(next((edge for edge in BINS if edge >= values.max()), int(values.max())))
    bins = np.searchsorted(edges, values)
    median, p90, p99 = (int(value) for value in np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf"))
    return Lengths(
        shortest=int(values.min()),
        median=median,
        mean=round(float(values.mean()), 1),
        p90=p90,
        p99=p99,
        longest=int(values.max()),
        histogram=[
            (edge, int(count))
            for edge, count in zip(edges, np.bincount(bins, minlength=len(edges)), strict=True)
        ],
    )
