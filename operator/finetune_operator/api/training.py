# ruff: noqa: RUF012 - pydantic copies a mutable default for each instance
"""spec.training, spec.checkpoint and spec.deepspeed: the optimisation and how it is spread."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from finetune_operator.api.base import INT32_MAX, Between, Fraction, Part

DEFAULT_EPOCHS = "3"
"""The length of a job that names neither epochs nor maxSteps (a default in the schema would make it two)."""

Count = Annotated[int, Field(ge=1, le=INT32_MAX)]


class Training(Part):
    """The optimisation."""

    epochs: Annotated[Fraction, Between(above=0)] | None = None
    """Passes over the training split; 3 if maxSteps is left out too."""
    max_steps: Count | None = None
    """Optimizer steps, in place of epochs."""
    learning_rate: Annotated[Fraction, Between(above=0, at_most=0.1)] = "1e-4"
    """Peak learning rate."""
    scheduler: Literal["Cosine", "Linear", "Constant"] = "Cosine"
    """Course of the learning rate after the warm-up."""
    warmup_ratio: Annotated[Fraction, Between(at_least=0, at_most=1)] = "0.03"
    """Share of all steps in which the learning rate rises to its peak."""
    weight_decay: Annotated[Fraction, Between(at_least=0)] = "0"
    """AdamW's decay of the adapter's weights."""
    max_gradient_norm: Annotated[Fraction, Between(at_least=0)] = "1"
    """Gradients are clipped to this norm; "0" does not clip."""
    global_batch_size: Count = 32
    """Examples per optimizer step over all ranks, however they are packed."""
    micro_batch_size: Count | None = None
    """Examples of maxLength that fit into one forward pass of one rank; chosen by the trainer if left out."""
    precision: Literal["BF16", "FP16", "FP32"] = "BF16"
    """Of the base model's weights and of all arithmetic; the optimizer's own state is FP32."""
    gradient_checkpointing: bool = True
    """Compute activations twice instead of keeping them."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    """Of the order of the examples, the adapter's first weights and dropout."""
    log_steps: Count = 10
    """Optimizer steps between two lines of progress."""
    evaluation_steps: Count = 500
    """Optimizer steps between two evaluations on the validation split."""


class Checkpoint(Part):
    """When checkpoints are taken and how many are kept."""

    steps: Count = 500
    """Optimizer steps between two checkpoints."""
    keep: Count = 3
    """The newest ones that are kept."""


def _no_truth_value(stage: object) -> object:
    # To a Literal, true is 1: they are equal in Python.
    if isinstance(stage, bool):
        raise PydanticCustomError("literal_error", "no stage", {"expected": "'Auto', 0, 1, 2 or 3"})
    return stage


class DeepSpeed(Part):
    """How DeepSpeed spreads the model's state over the ranks."""

    stage: Annotated[Literal["Auto", 0, 1, 2, 3], BeforeValidator(_no_truth_value)] = "Auto"
    """ZeRO stage; Auto takes 2, or 3 where the parameters are offloaded."""
    offload_optimizer: Literal["None", "CPU"] = "None"
    """Hold the optimizer's state in host memory; needs a stage above 0."""
    offload_parameters: Literal["None", "CPU"] = "None"
    """Hold the parameters in host memory; needs stage 3, which Auto then takes."""
    config: dict[str, Any] = {}
    """Expert keys of DeepSpeed's configuration, laid over ours; may not contradict the job."""
