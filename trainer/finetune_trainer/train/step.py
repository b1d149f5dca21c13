"""One optimizer step over the global batch, and losses over whole splits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from finetune_trainer.config import RunConfig
from finetune_trainer.train.batches import chunk, spread
from finetune_trainer.train.collate import Example, MicroBatch, pack, pad, untrained
from finetune_trainer.train.engine import Engine
from finetune_trainer.train.world import World

_ROW_TOKENS_CPU = 1024
"""Tokens a forward pass where the job does not say: enough to keep two cores busy, small in memory."""
_ROW_TOKENS_GPU = 8192
_MICRO_BATCH = 4
_EVALUATION_SLAB = 4096
"""Examples laid out at a time in an evaluation; the layout is a list, the examples stay on disk."""


class Split(Protocol):
    """One split of the prepared data (see docs/architecture.md)."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, `[examples]`."""

    @property
    def trained_counts(self) -> NDArray[np.int64]:
        """Trained tokens of each example, `[examples]`."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row number of each example in source order, from 0, `[examples]`."""

    def tokens(self, index: int) -> NDArray[np.int32]:
        """Token ids of one example."""

    def trained(self, index: int) -> NDArray[np.bool_]:
        """Which of them are trained."""

    def __len__(self) -> int:
        """Examples in the split."""


@dataclass(frozen=True)
class Shape:
    """How examples are laid out for one forward pass."""

    packs: bool
    row_tokens: int
    """Tokens of a packed row."""
    micro_batch: int
    """Examples of a padded one."""
    padding: int
    """Token id that fills a padded one up."""

    @classmethod
    def of(cls, run: RunConfig, *, packs: bool, padding: int) -> Shape:
        """The job's micro batch, or what suits the device where the job leaves it open."""
        micro_batch = run.training.micro_batch_size
        if micro_batch is not None:
            row_tokens = micro_batch * run.dataset.max_length
        else:
            row_tokens = _ROW_TOKENS_GPU if run.workers.gpus_per_worker else _ROW_TOKENS_CPU
        return cls(packs, row_tokens, micro_batch or _MICRO_BATCH, padding)

    def lay_out(self, lengths: NDArray[np.int64], world: World) -> list[list[int]]:
        """This rank's rows of a global batch: positions into `lengths`, as many rows as any other rank."""
        if self.packs:
            return spread(lengths, ranks=world.size, row_tokens=self.row_tokens)[world.rank]
        return chunk(lengths, ranks=world.size, micro_batch=self.micro_batch)[world.rank]

    def collate(self, examples: list[Example]) -> MicroBatch:
        """One forward pass over `examples`."""
        return pack(examples) if self.packs else pad(examples, self.padding)


class Stepper:
    """Runs batches of one split through the engine; every method is a collective.

    Args:
        engine: what learns.
        shape: the layout of a forward pass.
        world: this rank's place.
        beat: called after every forward pass, to say that this rank still moves.
    """

    def __init__(self, engine: Engine, shape: Shape, world: World, beat: Callable[[], None]) -> None:
        self._engine = engine
        self._shape = shape
        self._world = world
        self._beat = beat
        self.spoilt: list[int] = []
        """Examples, on this rank, of the last batch's forward passes whose loss was not finite."""

    def accumulate(self, split: Split, batch: list[int]) -> float:
        """Forward and backward over a global batch.

        The gradient is that of the mean over the trained tokens of the whole batch on all ranks,
        however the examples fall on ranks and rows.

        Returns:
            This rank's sum of losses, in nats.
        """
        trained = max(1, int(split.trained_counts[batch].sum()))
        # The engine takes the mean over ranks; the objective is the sum over them.
        weight = self._world.size / trained
        rows = self._shape.lay_out(split.lengths[batch], self._world)
        total = 0.0
        self.spoilt = []
        for index, row in enumerate(rows):
            loss = self._engine.loss(self._collate(split, batch, row))
            self._engine.accumulate(loss * weight, last=index == len(rows) - 1)
            value = float(loss.detach())
            if not math.isfinite(value):
                self.spoilt += [batch[at] for at in row]
            total += value
            self._beat()
        return total

    @torch.no_grad()
    def evaluate(self, split: Split) -> tuple[float, int]:
        """Mean loss over the trained tokens of a split, and how many they are.

        The same for any number of ranks and any layout: sums are added, then divided once.
        """
        self._engine.module.eval()
        total = 0.0
        for first in range(0, len(split), _EVALUATION_SLAB):
            batch = list(range(first, min(first + _EVALUATION_SLAB, len(split))))
            for row in self._shape.lay_out(split.lengths[batch], self._world):
                total += float(self._engine.loss(self._collate(split, batch, row)))
                self._beat()
        self._engine.module.train()
        tokens = int(split.trained_counts[:].sum())
        return self._world.sum([total])[0] / max(1, tokens), tokens

    def _collate(self, split: Split, batch: list[int], row: list[int]) -> MicroBatch:
        examples = [(split.tokens(batch[at]), split.trained(batch[at])) for at in row]
        if not examples:
            examples = [untrained((split.tokens(batch[0]), split.trained(batch[0])))]
        return self._shape.collate(examples).to(self._world.device)
