"""Whether what rank 0 saved is an adapter at all: pure checks over facts, no torch.

Adapters that were saved from split parameters are empty, adapters that never got a gradient are
zero, and both load without a complaint. Nothing of that kind is published.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from finetune_trainer.config import Adapter, ExitReason, RunError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_STARTS_AT_ZERO = (".lora_B.weight", ".lora_embedding_A")
"""The factor of each pair that is zero before the first step, so that a fresh adapter changes nothing."""
_NAMED = 3
"""Tensors that a message names before it counts the rest."""


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of the adapter."""

    shape: tuple[int, ...]
    finite: bool = True
    """Every value is a number."""
    zero: bool = False
    """Every value is zero."""


def check_files(names: Collection[str]) -> None:
    """Require the adapter's two files, and nothing that runs code when it is loaded.

    Raises:
        RunError: Internal.
    """
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    if pickles:
        raise _refused(f"{pickles[0]} is a pickle, which can run code when it is loaded")
    for name in (WEIGHTS, CONFIG):
        if name not in names:
            raise _refused(f"{name} is missing")


def check_config(config: Mapping[str, object], adapter: Adapter) -> None:
    """Require that `adapter_config.json` describes the adapter of the job.

    Raises:
        RunError: Internal, naming the first difference.
    """
    wanted = {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "use_rslora": adapter.rank_stabilized,
    }
    for key, value in wanted.items():
        if config.get(key) != value:
            raise _refused(f"{CONFIG} says {key} {config.get(key)!r}, and the job {value!r}")


def check_tensors(tensors: Mapping[str, TensorFacts], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Require every expected tensor, whole, finite, and at least one pair that has learned something.

    Args:
        tensors: what the file holds, by name.
        expected: shape of every tensor that the targeted modules need, by name.

    Raises:
        RunError: Internal for a broken file; NonFiniteLoss for values that are no numbers;
            InvalidConfiguration where training has changed nothing.
    """
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise _refused(f"{_names(missing)} of {len(expected)} tensors missing")
    empty = [name for name in expected if not math.prod(tensors[name].shape)]
    if empty:
        raise _refused(
            f"{_names(empty)} of {len(expected)} tensors empty: the ranks' parts were not gathered"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise _refused(f"{name} has shape {list(tensors[name].shape)} in place of {list(shape)}")
    broken = [name for name, facts in tensors.items() if not facts.finite]
    if broken:
        raise RunError(
            ExitReason.NON_FINITE_LOSS,
            f"the adapter is refused: {_names(broken)} of {len(tensors)} tensors hold infinities or NaN",
            "lower training.learningRate, or train in BF16",
        )
    learned = [name for name in expected if name.endswith(_STARTS_AT_ZERO)]
    if all(tensors[name].zero for name in learned):
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"the adapter is refused: nothing was learned, all {len(learned)} lora_B tensors are still zero",
            "raise training.learningRate or the number of steps",
        )


def _names(names: list[str]) -> str:
    """`a, b, c and 4 more`, as the beginning of a statement about some of many."""
    rest = len(names) - _NAMED
    listed = ", ".join(names[:_NAMED])
    return f"{listed} and {rest} more" if rest > 0 else listed


def _refused(why: str) -> RunError:
    return RunError(ExitReason.INTERNAL, f"the adapter is refused: {why}")
