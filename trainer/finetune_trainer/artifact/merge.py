"""The adapter merged into the base model's own weights, and checked against the adapter itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from finetune_trainer.artifact.base import load_adapter, load_base
from finetune_trainer.artifact.loadback import logits
from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage.failures import local

TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Root mean square of the difference between the logits, by that of the logits themselves: each merged
weight is rounded to the base model's dtype (2**-9 of its size in bfloat16), and layers add up.
Measured over 30 layers: 7e-7 in float32, 1e-2 in bfloat16."""


@dataclass(frozen=True)
class Change:
    """Differences between logits over one example, relative to their size."""

    error: float
    """Between merged model and adapter."""
    effect: float
    """Between adapter and base model."""
    dtype: str

    @property
    def lost(self) -> bool:
        """Rounding is of the size of what was learned."""
        return self.error > self.effect / 2


def merge(
    base: Path, adapter: Path, target: Path, tokens: Sequence[int], *, trust_remote_code: bool
) -> Change:
    """Write the merged model to `target`, in the dtype of the original base model.

    Under QLoRA too it is the original base that is merged into: 4 bits cannot hold the sum.

    Args:
        base: folder of the base model.
        adapter: folder of the adapter.
        target: an empty or missing folder.
        tokens: of a held-out example, over which the models are compared.
        trust_remote_code: run code that the base model brings along.

    Raises:
        RunError: Internal, the merged model says something else than base and adapter.
    """
    model = load_adapter(load_base(base, precision="own", trust_remote_code=trust_remote_code), adapter)
    wanted = logits(model, tokens)
    with model.disable_adapter():
        effect = difference(logits(model, tokens), wanted)
    merged = model.merge_and_unload(safe_merge=True)
    error = difference(logits(merged, tokens), wanted)
    if not error <= TOLERANCES[merged.dtype]:
        raise RunError(
            ExitReason.INTERNAL,
            f"the merged model is refused: its logits differ from the adapter's by {error:.1e} of their size",
            "serve the adapter beside its base model instead",
        )
    with local(target, "write"):
        merged.save_pretrained(target)
    return Change(error, effect, str(merged.dtype).removeprefix("torch."))


def difference(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    """Root mean square of `ours - wanted`, by that of `wanted`."""
    return float((ours - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
