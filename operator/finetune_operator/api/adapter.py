# ruff: noqa: RUF012 - pydantic copies a mutable default for each instance
"""spec.adapter: the low-rank adapter that is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api import patterns
from finetune_operator.api.base import INT32_MAX, Between, Fraction, Part

ALL_LINEAR = "all-linear"
"""Stands alone in targetModules: every linear layer but the output head."""

ModuleName = Annotated[str, Field(min_length=1, max_length=256, pattern=patterns.MODULE_NAME)]


class Quantization(Part):
    """How the frozen base model's weights are held under QLoRA."""

    type: Literal["NF4"] = "NF4"
    """The 4-bit data type."""
    double_quantization: bool = True
    """Quantise the quantisation constants too."""


class Adapter(Part):
    """The low-rank adapter."""

    method: Literal["LoRA", "QLoRA"] = "LoRA"
    """QLoRA holds the base model in 4 bits."""
    rank: Annotated[int, Field(ge=1, le=512)] = 16
    """Rank of the update matrices; 512 is the largest that vLLM serves."""
    alpha: Annotated[int, Field(ge=1, le=INT32_MAX)] = 32
    """Scale of the update, divided by the rank (or by its root, see rankStabilized)."""
    dropout: Annotated[Fraction, Between(at_least=0, below=1)] = "0.05"
    """Share of the adapter's inputs dropped in training."""
    target_modules: Annotated[list[ModuleName], Field(min_length=1, max_length=256)] = [ALL_LINEAR]
    """Names of the modules to adapt, or all-linear alone."""
    rank_stabilized: bool = False
    """Divide alpha by the root of the rank."""
    quantization: Quantization | None = None
    """With QLoRA only; NF4 with double quantisation if left out."""
