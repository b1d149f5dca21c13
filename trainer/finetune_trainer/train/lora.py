"""The adapter: PEFT's LoRA over the base model."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from finetune_trainer.config import Adapter, ExitReason, RunError

ALL_LINEAR = "all-linear"


def wrap(model: PreTrainedModel, adapter: Adapter, *, seed: int) -> PeftModel:
    """Attach a fresh adapter, the same on every rank.

    Raises:
        RunError: a target module does not exist in this model (`InvalidConfiguration`).
    """
    targets = adapter.target_modules
    if targets != [ALL_LINEAR] and (unknown := _unknown(model, targets)):
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"adapter.targetModules names {', '.join(unknown)}, which this model does not have",
            f"choose from {', '.join(_linear_names(model))}, or write [all-linear]",
        )
    torch.manual_seed(seed)
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=adapter.rank,
            lora_alpha=adapter.alpha,
            lora_dropout=adapter.dropout,
            target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
            use_rslora=adapter.rank_stabilized,
        ),
        # The engine decides the precision: fp32 masters over weights in the job's precision.
        autocast_adapter_dtype=False,
    )


def _linear_names(model: PreTrainedModel) -> list[str]:
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        }
    )


def _unknown(model: PreTrainedModel, targets: list[str]) -> list[str]:
    names = [name for name, _ in model.named_modules()]
    return [
        target
        for target in targets
        if not any(name == target or name.endswith(f".{target}") for name in names)
    ]
