"""A linear layer with its LoRA branch as one operation.

PEFT's layer runs the base product, two small products, a scaling and an addition, each remembered
for the backward pass. Here the branch is added into the base product's result, the backward pass is
written out, and nothing of the size of the output is kept.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import Linear as LoraLinear

from finetune_trainer.train.arithmetic import multiply, project, widens

_ADAPTER = "default"


class _FusedLora(torch.autograd.Function):
    """`x W^T + b + s (d A^T) B^T` with W and b frozen; d is x, or x after dropout.

    Shapes: x, d `[tokens, in]`; W `[out, in]`; b `[out]`; A `[rank, in]`; B `[out, rank]`.
    With g the gradient of the result: dA = s (g B)^T d, dB = s g^T (d A^T), dd = s (g B) A, dx = g W.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        dropped: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        branch = inputs if dropped is None else dropped
        narrow = project(branch, down)
        outputs = project(inputs, weight, bias)
        if widens(outputs):
            outputs += multiply(narrow, up.t()) * scaling
        else:
            outputs.addmm_(narrow, up.t(), alpha=scaling)
        ctx.save_for_backward(branch, narrow, weight, down, up)
        ctx.scaling = scaling
        ctx.has_dropped = dropped is not None
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = upstream
        branch, narrow, weight, down, up = ctx.saved_tensors
        # The rank is small: scaling here costs least.
        through_up = multiply(gradient, up) * ctx.scaling
        d_down = multiply(through_up.t(), branch)
        # This way round the wide matrix is read along its rows: twice as fast on a CPU.
        d_up = (multiply(narrow.t(), gradient) * ctx.scaling).t()
        d_inputs = d_dropped = None
        if ctx.needs_input_grad[0]:
            d_inputs = multiply(gradient, weight)
        if ctx.has_dropped:
            d_dropped = multiply(through_up, down)
        elif d_inputs is not None:
            if widens(d_inputs):
                d_inputs += multiply(through_up, down)
            else:
                d_inputs.addmm_(through_up, down)
        return d_inputs, d_dropped, None, None, d_down, d_up, None


class _FrozenProduct(torch.autograd.Function):
    """`x W^T + b` with W and b frozen, widened where that is faster; x `[..., in]`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return project(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = upstream
        (weight,) = ctx.saved_tensors
        flat = multiply(gradient.reshape(-1, gradient.shape[-1]), weight)
        return flat.reshape(*gradient.shape[:-1], weight.shape[1]), None, None


def fuse(model: PeftModel) -> int:
    """Run plain LoRA layers as one operation each, and frozen ones in the arithmetic that is fastest.

    Weights are read straight from the modules, so this is not for parameters that are split over
    ranks (ZeRO stage 3), and quantised layers are left as they are.

    Returns:
        How many LoRA layers were fused.
    """
    fused = 0
    adapted = set()
    for module in model.modules():
        if isinstance(module, LoraLinear) and _is_plain(module):
            module.forward = MethodType(_lora_forward, module)  # type: ignore[method-assign]
            adapted.add(module.base_layer)
            fused += 1
    for module in model.modules():
        # By type, not isinstance: a quantised layer is a torch Linear too.
        if type(module) is torch.nn.Linear and module not in adapted and _is_frozen(module):
            module.forward = MethodType(_frozen_forward, module)  # type: ignore[method-assign]
    return fused


def _is_plain(module: LoraLinear) -> bool:
    return (
        type(module.base_layer) is torch.nn.Linear
        and list(module.lora_A) == [_ADAPTER]
        and not module.use_dora.get(_ADAPTER, False)
        and not module.lora_bias.get(_ADAPTER, False)
        and not module.fan_in_fan_out
    )


def _is_frozen(module: torch.nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters())


def _frozen_forward(self: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = _FrozenProduct.apply(inputs, self.weight, self.bias)
    return outputs


def _lora_forward(self: LoraLinear, inputs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if self.disable_adapters or self.merged or args or kwargs:
        plain: torch.Tensor = LoraLinear.forward(self, inputs, *args, **kwargs)
        return plain
    flat = inputs.reshape(-1, inputs.shape[-1])
    dropout = self.lora_dropout[_ADAPTER]
    active = self.training and isinstance(dropout, torch.nn.Dropout) and dropout.p > 0
    base = self.base_layer
    outputs: torch.Tensor = _FusedLora.apply(
        flat,
        dropout(flat) if active else None,
        base.weight,
        base.bias,
        self.lora_A[_ADAPTER].weight,
        self.lora_B[_ADAPTER].weight,
        self.scaling[_ADAPTER],
    )
    return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])
