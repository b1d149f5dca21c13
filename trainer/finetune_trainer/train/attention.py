"""Causal attention within each example of a packed row, at the cost of the examples alone.

Examples that share a row must not see each other. A dense block mask keeps them apart but costs
the square of the row; here each example is attended to by itself, so a row costs the sum of its
examples' squares. transformers looks the function up by name and hands it the boundaries that
`finetune_trainer.train.collate` puts beside the tokens.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from finetune_trainer.train.arithmetic import widens

PACKED = "finetune_packed"
"""The name to load a model with: `attn_implementation=PACKED`."""

PACKED_EAGER = "finetune_packed_eager"
"""The same for the architecture's own eager attention, whatever it does beside a causal softmax."""

_FOREIGN = ("softcap", "s_aux", "position_bias", "head_mask")
"""What some architectures ask of attention beyond a scaled causal softmax."""


def is_flash(model: PreTrainedModel) -> bool:
    """Whether a model attends by FlashAttention, which takes the boundaries as they are."""
    return str(model.config._attn_implementation).startswith("flash")


class UnpackableError(Exception):
    """The architecture asks its attention for something that is not done here."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within `[cu_seq_lens_q[i], cu_seq_lens_q[i+1])` for each i, causally.

    Args:
        module: the attention layer (not read; transformers passes it).
        query: `[1, heads, tokens, head size]`.
        key: `[1, key-value heads, tokens, head size]`.
        value: `[1, key-value heads, tokens, value size]`.
        attention_mask: must be None: boundaries come from `cu_seq_lens_q`.
        dropout: probability, 0 outside training.
        scaling: factor of the scores; None for `head size ** -0.5`.
        sliding_window: tokens each token looks back over, itself included; None for all.
        cu_seq_lens_q: int32 `[examples + 1]`, from 0 to `tokens`, on the CPU.

    Returns:
        `[1, tokens, heads, value size]` and None (no weights).

    Raises:
        UnpackableError: a mask, several rows or no boundaries; or more than causal softmax is asked for.
    """
    bounds = _bounds(query, attention_mask, cu_seq_lens_q)
    if foreign := [name for name in _FOREIGN if asked.get(name) is not None]:
        raise UnpackableError(f"packed attention has no {', '.join(foreign)}")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    dtype = query.dtype
    if widens(query):
        query, key, value = query.float(), key.float(), value.float()
    lengths = [last - first for first, last in itertools.pairwise(bounds)]
    parts = [
        scaled_dot_product_attention(
            q,
            k,
            v,
            # Where the window never binds, the kernel's own causal mask costs nothing.
            attn_mask=None
            if (causal := _fits(q, sliding_window))
            else _seen(q.shape[2], sliding_window, q.device),
            dropout_p=dropout,
            is_causal=causal,
            scale=scaling,
        )
        for q, k, v in zip(
            query.split(lengths, dim=2), key.split(lengths, dim=2), value.split(lengths, dim=2), strict=True
        )
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).to(dtype), None


def packed_eager_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """As packed_attention, by the eager attention of the model that `module` belongs to.

    Raises:
        UnpackableError: a mask, several rows or no boundaries; or the model has no such function.
    """
    bounds = _bounds(query, attention_mask, cu_seq_lens_q)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise UnpackableError(f"{type(module).__name__} has no eager attention to call for each example")
    parts = []
    for first, last in itertools.pairwise(bounds):
        seen = _seen(last - first, sliding_window, query.device)
        least = torch.finfo(query.dtype).min
        mask = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, least)
        part = slice(first, last)
        attended, _ = eager(
            module,
            query[:, :, part],
            key[:, :, part],
            value[:, :, part],
            mask[None, None],
            sliding_window=sliding_window,
            **asked,
        )
        parts.append(attended)
    return torch.cat(parts, dim=1), None


def _bounds(
    query: torch.Tensor, attention_mask: torch.Tensor | None, cu_seq_lens_q: torch.Tensor | None
) -> list[int]:
    """Where the examples of a packed row begin and end.

    Raises:
        UnpackableError: a mask, several rows or no boundaries.
    """
    if attention_mask is not None or cu_seq_lens_q is None or query.shape[0] != 1:
        raise UnpackableError("packed attention takes one row with its boundaries and no mask")
    bounds: list[int] = cu_seq_lens_q.tolist()
    return bounds


def _fits(query: torch.Tensor, sliding_window: int | None) -> bool:
    return sliding_window is None or query.shape[2] <= sliding_window


def _seen(tokens: int, sliding_window: int | None, device: torch.device) -> torch.Tensor:
    """Which positions each position sees, bool `[tokens, tokens]`: those up to it, within the window."""
    position = torch.arange(tokens, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < (sliding_window or tokens))


AttentionInterface.register(PACKED, packed_attention)
AttentionInterface.register(PACKED_EAGER, packed_eager_attention)
