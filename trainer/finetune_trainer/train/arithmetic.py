"""Matrix products on processors without bf16 arithmetic.

Such a CPU multiplies bf16 matrices several times slower than fp32 ones (5 against 25 GFLOP/s seen
on AVX2). The result of a bf16 product is an fp32 sum rounded once, so widening the operands,
multiplying in fp32 and rounding the result computes the same thing, faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import linear

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@functools.cache
def _multiplies_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def widens(tensor: torch.Tensor) -> bool:
    """Whether products with `tensor` are better taken in fp32 on this machine."""
    if tensor.device.type != "cpu":
        return False
    return tensor.dtype == torch.float16 or (tensor.dtype == torch.bfloat16 and not _multiplies_bf16())


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left @ right` of two matrices of one dtype, rounded once to that dtype."""
    if widens(left):
        return (left.float() @ right.float()).to(left.dtype)
    return left @ right


def project(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`inputs @ weight.T + bias`, as torch.nn.functional.linear, rounded once to the inputs' dtype."""
    if widens(inputs):
        wide = linear(inputs.float(), weight.float(), None if bias is None else bias.float())
        return wide.to(inputs.dtype)
    return linear(inputs, weight, bias)
