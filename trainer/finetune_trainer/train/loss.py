"""Cross entropy of the trained tokens only, in chunks, without a `[tokens, vocabulary]` tensor.

Logits of prompt tokens are never computed. Those of trained tokens are computed a chunk at a
time; where the output head is frozen, as under LoRA, the gradient with respect to the hidden
states is taken in the same visit, so no chunk's logits outlive it and none is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 64 * 2**20
"""Bytes that one chunk's fp32 logits may take."""

Head = Callable[[torch.Tensor], torch.Tensor]


def chunk_rows(vocabulary: int) -> int:
    """Trained tokens per chunk, so that `[rows, vocabulary]` in fp32 stays within CHUNK_BYTES."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


def sum_loss(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, *, vocabulary: int, frozen_head: bool
) -> torch.Tensor:
    """Sum of the negative log-likelihoods of `targets`, in nats, fp32.

    Args:
        hidden: `[tokens, hidden size]`, the states that predict `targets`.
        targets: int64 `[tokens]`.
        head: hidden states `[n, hidden size]` to logits `[n, vocabulary]`.
        vocabulary: the head's output size.
        frozen_head: nothing inside `head` is trained, so only `hidden` needs a gradient.

    Returns:
        A scalar; 0 with a gradient of 0 where there are no targets.
    """
    if targets.numel() == 0:
        # Still a part of the graph: with ZeRO every rank has to run the same backward pass.
        return hidden.sum().float() * 0.0
    rows = chunk_rows(vocabulary)
    if frozen_head and hidden.requires_grad:
        total: torch.Tensor = _FrozenHeadLoss.apply(hidden, targets, head, rows)
        return total
    parts = [
        checkpoint(_chunk_loss, part, label, head, use_reentrant=False)
        if torch.is_grad_enabled()
        else _chunk_loss(part, label, head)
        for part, label in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    return torch.stack(parts).sum()


def _chunk_loss(hidden: torch.Tensor, targets: torch.Tensor, head: Head) -> torch.Tensor:
    return cross_entropy(head(hidden).float(), targets, reduction="sum")


class _FrozenHeadLoss(torch.autograd.Function):
    """Loss and gradient of every chunk in the forward pass; the backward pass only scales."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, targets: torch.Tensor, head: Head, rows: int) -> torch.Tensor:
        gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for part, label, into in zip(
            hidden.split(rows), targets.split(rows), gradient.split(rows), strict=True
        ):
            with torch.enable_grad():
                leaf = part.detach().requires_grad_()
                loss = _chunk_loss(leaf, label, head)
                (slope,) = torch.autograd.grad(loss, leaf)
            into.copy_(slope)
            total += loss.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None, None
