"""The adapter loaded back by plain PEFT onto a fresh base model: it has to change what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from finetune_trainer.artifact.verify import TensorFacts
from finetune_trainer.config import Adapter, ExitReason, RunError

_PROMPT = 64
"""Tokens of a held-out example that logits are compared over; more would only take longer."""
_PREFIX = "base_model.model."


def read_facts(file: Path) -> dict[str, TensorFacts]:
    """Look at every tensor of a safetensors file, one at a time.

    Raises:
        RunError: Internal, it is not a whole safetensors file.
    """
    facts = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                tensor = tensors.get_tensor(name)
                facts[name] = TensorFacts(
                    tuple(tensor.shape), bool(tensor.isfinite().all()), not bool(tensor.any())
                )
    except SafetensorError as error:
        raise RunError(
            ExitReason.INTERNAL, f"the adapter is refused: {file.name} is damaged: {error}"
        ) from None
    return facts


def expected_shapes(model: PreTrainedModel, adapter: Adapter) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that the job's target modules need in this base model.

    LoRA adds `B A` to a weight, with A `[rank, inputs]` and B `[outputs, rank]`; for an embedding A is
    `[rank, vocabulary]`.
    """
    head = model.get_output_embeddings()
    every_linear = adapter.target_modules == ["all-linear"]
    expected: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if every_linear:
            wanted = isinstance(module, torch.nn.Linear | Conv1D) and module is not head
        else:
            wanted = any(name == target or name.endswith(f".{target}") for target in adapter.target_modules)
        if wanted:
            expected |= _pair(f"{_PREFIX}{name}", module, adapter.rank)
    return expected


def _pair(name: str, module: torch.nn.Module, rank: int) -> dict[str, tuple[int, ...]]:
    if isinstance(module, torch.nn.Embedding):
        return {
            f"{name}.lora_embedding_A": (rank, module.num_embeddings),
            f"{name}.lora_embedding_B": (module.embedding_dim, rank),
        }
    if isinstance(module, Conv1D):
        inputs, outputs = module.nx, module.nf
    elif isinstance(module, torch.nn.Linear):
        inputs, outputs = module.in_features, module.out_features
    else:
        return {}
    return {f"{name}.lora_A.weight": (rank, inputs), f"{name}.lora_B.weight": (outputs, rank)}


@torch.inference_mode()
def logits(model: torch.nn.Module, tokens: Sequence[int]) -> torch.Tensor:
    """Logits over the first tokens of an example, float32 `[tokens, vocabulary]` on the CPU."""
    device = next(model.parameters()).device
    ids = torch.tensor([list(tokens[:_PROMPT])], device=device)
    out: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return out[0].float().cpu()


def check_effect(model: PeftModel, tokens: Sequence[int]) -> float:
    """Compare what the model says with the adapter and without it.

    Returns:
        The largest difference between two logits.

    Raises:
        RunError: NonFiniteLoss, it says infinities or NaN; InvalidConfiguration, it makes no difference.
    """
    tuned = logits(model, tokens)
    with model.disable_adapter():
        base = logits(model, tokens)
    if not tuned.isfinite().all():
        raise RunError(
            ExitReason.NON_FINITE_LOSS,
            "the adapter is refused: with it the model's logits hold infinities or NaN",
            "lower training.learningRate, or train in BF16",
        )
    if torch.equal(tuned, base):
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            "the adapter is refused: with it the model says exactly what it says without",
            "raise training.learningRate or the number of steps",
        )
    return float((tuned - base).abs().max())
