"""The DeepSpeed engine behind four verbs: accumulate, step, snapshot, restore.

A snapshot is the whole fp32 state by parameter name, not DeepSpeed's per-rank shards, so a run
continues on any number of ranks and at any ZeRO stage. Adapters are small enough for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)

from finetune_trainer.train.collate import MicroBatch
from finetune_trainer.train.objective import Objective

MASTER, FIRST_MOMENT, SECOND_MOMENT = "master", "exp_avg", "exp_avg_sq"
"""What is kept per parameter: fp32 weights and Adam's two moments."""

Snapshot = dict[str, torch.Tensor]
"""`<kind>/<parameter name>`: fp32 on the CPU, in the parameter's own shape."""


@dataclass(frozen=True)
class Scale:
    """Dynamic loss scaling's state under FP16."""

    scale: float
    iteration: int
    last_overflow: int


class Engine:
    """One rank's part of the optimiser and of the gradient reduction."""

    def __init__(self, objective: Objective, configuration: dict[str, Any], weight_decay: float) -> None:
        trainable = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        # A rate of 0 until step() sets it: some of DeepSpeed's optimizers take a step on zero
        # gradients when they are made, which with a rate and weight decay would change the weights.
        optimizer = torch.optim.AdamW(trainable, lr=0.0, weight_decay=weight_decay)
        self._engine, *_ = deepspeed.initialize(
            model=objective, optimizer=optimizer, model_parameters=trainable, config=configuration
        )
        self._objective = objective
        self._clips_itself = self._engine.zero_optimization_stage() == 0 and not (
            self._engine.fp16_enabled() or self._engine.bfloat16_enabled()
        )
        self._set_count(0)

    @property
    def module(self) -> Objective:
        """The objective, as the engine holds it."""
        return self._objective

    def loss(self, batch: MicroBatch) -> torch.Tensor:
        """Sum of the losses of `batch`'s trained tokens; with a graph where gradients are on."""
        total: torch.Tensor = self._engine(batch)
        return total

    def accumulate(self, loss: torch.Tensor, *, last: bool) -> None:
        """Add the gradient of `loss`; with `last`, reduce over all ranks (their mean)."""
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clip, update, clear.

        Returns:
            The gradient's 2-norm over all trained parameters, before clipping; infinite or NaN where the
            gradient is not finite.
        """
        own_norm = self._plain_norm() if self._clips_itself else None
        for group in self._inner.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        if own_norm is not None:
            return own_norm
        return readable_norm(float(self._engine.get_global_grad_norm() or 0.0))

    @property
    def skipped(self) -> bool:
        """Whether the last step was left out because FP16 gradients overflowed.

        DeepSpeed also leaves out steps of other precisions whose gradient is not finite; there no loss
        scale gives way, so that is a failure, and the norm that step() returned says so.
        """
        return bool(self._engine.fp16_enabled() and getattr(self._engine.optimizer, "overflow", False))

    def trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Trained parameters by their name in the model, in a fixed order."""
        for name, parameter in self._objective.model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    @property
    def moved(self) -> bool:
        """Whether any of the adapter's up projections, which begin at zero, is another now. A collective."""
        # Whole on every rank, so that all ranks stop asking at the same one.
        return any(
            bool(self._read(parameter, MASTER).any())
            for name, parameter in self.trained()
            if "lora_B" in name
        )

    def weights(self) -> Snapshot:
        """The trained parameters by name, whole, fp32 on the CPU. A collective."""
        return {name: self._read(parameter, MASTER) for name, parameter in self.trained()}

    def snapshot(self) -> Snapshot:
        """Weights and moments, whole. A collective: every rank calls it and gets all of it."""
        return {
            f"{kind}/{name}": self._read(parameter, kind)
            for kind in (MASTER, FIRST_MOMENT, SECOND_MOMENT)
            for name, parameter in self.trained()
        }

    def restore(self, snapshot: Snapshot, *, count: int, idle: MicroBatch) -> None:
        """Continue from a snapshot taken after `count` optimizer steps. A collective.

        Args:
            snapshot: from snapshot(), of a model with the same trained parameters.
            count: optimizer steps taken, for Adam's bias correction.
            idle: any micro batch; a step of rate 0 on it makes the optimizer allocate its state
                and copies the masters into the weights that compute.
        """
        for name, parameter in self.trained():
            self._write(parameter, MASTER, snapshot[f"{MASTER}/{name}"])
        self.accumulate(self.loss(idle) * 0.0, last=True)
        self.step(0.0)
        for name, parameter in self.trained():
            for kind in (FIRST_MOMENT, SECOND_MOMENT):
                self._write(parameter, kind, snapshot[f"{kind}/{name}"])
        self._set_count(count)

    @property
    def scale(self) -> Scale | None:
        """The loss scaler's state under FP16, else None."""
        scaler = self._scaler
        if scaler is None:
            return None
        return Scale(float(scaler.cur_scale), scaler.cur_iter, scaler.last_overflow_iter)

    @scale.setter
    def scale(self, scale: Scale) -> None:
        scaler = self._scaler
        if scaler is not None:
            scaler.cur_scale, scaler.cur_iter = scale.scale, scale.iteration
            scaler.last_overflow_iter = scale.last_overflow

    @property
    def _scaler(self) -> Any:
        if not self._engine.fp16_enabled():
            return None
        optimizer = self._engine.optimizer
        # ZeRO holds a scaler object, the plain FP16 optimizer keeps the same numbers in its configuration.
        return getattr(optimizer, "loss_scaler", None) or optimizer.loss_scale_config

    @property
    def _inner(self) -> torch.optim.Optimizer:
        """torch's AdamW, which DeepSpeed wraps at every stage but a plain fp32 stage 0."""
        inner: torch.optim.Optimizer = getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)
        return inner

    def _set_count(self, count: int) -> None:
        for state in self._inner.state.values():
            if "step" in state:
                state["step"].fill_(float(count))

    def _plain_norm(self) -> float:
        gradients = [parameter.grad for _, parameter in self.trained() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _master(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """The fp32 tensor that the inner optimizer updates, where no ZeRO stage splits it."""
        groups = getattr(self._engine.optimizer, "fp32_groups", None)
        if groups is None:
            return parameter if self._clips_itself else None
        low = [one for group in self._engine.optimizer.fp16_groups for one in group]
        high: list[torch.Tensor] = [one for group in groups for one in group]
        return next(master for one, master in zip(low, high, strict=True) if one is parameter)

    def _read(self, parameter: torch.nn.Parameter, kind: str) -> torch.Tensor:
        master = self._master(parameter)
        if master is not None:
            value = master if kind == MASTER else self._inner.state[master][kind]
        elif kind == MASTER:
            value = safe_get_full_fp32_param(parameter)
        else:
            value = safe_get_full_optimizer_state(parameter, kind)
        shape = getattr(parameter, "ds_shape", parameter.shape)
        return value.detach().to("cpu", torch.float32, copy=True).reshape(shape)

    def _write(self, parameter: torch.nn.Parameter, kind: str, value: torch.Tensor) -> None:
        master = self._master(parameter)
        if master is not None:
            target = master if kind == MASTER else self._inner.state[master][kind]
            with torch.no_grad():
                target.copy_(value)
            return
        value = value.to(parameter.device)
        if hasattr(parameter, "ds_id"):
            # Each rank keeps an equal part, the last one padded.
            share = safe_get_local_fp32_param(parameter).numel()
            first = min(share * torch.distributed.get_rank(), value.numel())
            part = torch.zeros(share, dtype=torch.float32, device=value.device)
            held = value.flatten()[first : first + share]
            part[: held.numel()] = held
            if kind == MASTER:
                safe_set_local_fp32_param(parameter, part)
            else:
                safe_set_local_optimizer_state(parameter, part, kind)
        elif kind == MASTER:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, kind)


def readable_norm(norm: float) -> float:
    """DeepSpeed's gradient norm, NaN where DeepSpeed marks one that is not finite by a number below 0."""
    return norm if norm >= 0.0 else math.nan
