"""The base model: from its URI to weights on this rank, ready for adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from finetune_trainer.config import ExitReason, RunConfig, RunError
from finetune_trainer.quantized import four_bit
from finetune_trainer.train.attention import PACKED, PACKED_EAGER
from finetune_trainer.train.world import World

DTYPES = {"BF16": torch.bfloat16, "FP16": torch.float16, "FP32": torch.float32}

# Where nothing is asked for, transformers takes SDPA, or eager attention for the architectures that SDPA
# cannot serve (capped scores, sinks); asked for by name, SDPA is refused there.
_IMPLEMENTATIONS = {"SDPA": None, "Eager": "eager", "Flash": "flash_attention_2"}

_PACKING = {"SDPA": PACKED, "Eager": PACKED_EAGER, "Flash": "flash_attention_2"}


@dataclass(frozen=True)
class Base:
    """The base model as loaded.

    Attributes:
        model: the causal LM, nothing trained.
        packs: whether examples may share a row without seeing each other.
    """

    model: PreTrainedModel
    packs: bool


def load_base(run: RunConfig, folder: Path, world: World, engine_configuration: dict[str, Any]) -> Base:
    """Load the weights in the job's precision, or quantised under QLoRA. A collective at ZeRO stage 3.

    Raises:
        RunError: the folder holds no causal LM in safetensors, or one that needs code of its own.
    """
    dtype = DTYPES[run.training.precision]
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": _implementation(run),
        "trust_remote_code": run.model.trust_remote_code,
        "use_safetensors": True,
    }
    stage = engine_configuration["zero_optimization"]["stage"]
    quantised = run.adapter.quantization is not None
    if run.adapter.quantization is not None:
        # ZeRO-3 splits only floating-point parameters, so the 4-bit blocks pose as such.
        storage = dtype if stage == 3 else torch.uint8
        options["quantization_config"] = four_bit(run.adapter.quantization, dtype, storage)
    if quantised or (stage < 3 and world.device.type == "cuda"):
        # Else the ranks of a worker would hold all weights in host memory, each of them once.
        options["device_map"] = {"": world.device}
    # While this object lives, from_pretrained splits each weight over the ranks as it loads it.
    splitting = HfDeepSpeedConfig(engine_configuration) if stage == 3 and not quantised else None
    model = _from_pretrained(folder, options)
    del splitting
    model.config.use_cache = False
    model.requires_grad_(False)
    if run.training.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # Without this nothing before the first adapter needs a gradient, and checkpointing drops it all.
        model.enable_input_require_grads()
    return Base(model, packs=run.dataset.packing and _may_pack(model))


def require_precision(run: RunConfig) -> None:
    """Refuse a precision that this rank's device cannot compute in.

    Raises:
        RunError: FP16 on a processor without it (`InvalidConfiguration`).
    """
    from deepspeed.accelerator import get_accelerator

    if run.training.precision == "FP16" and not get_accelerator().is_fp16_supported():
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            "training.precision is FP16, in which this machine's processor does not compute",
            "write BF16 or FP32",
        )


def use_padding(base: Base, run: RunConfig) -> Base:
    """The same model, one example a row: for architectures in which packed examples see each other."""
    # None means what it means in from_pretrained, though only that says so in its types.
    base.model.set_attn_implementation(_IMPLEMENTATIONS[run.model.attention])  # type: ignore[arg-type]
    return Base(base.model, packs=False)


def _implementation(run: RunConfig) -> str | None:
    implementations = _PACKING if run.dataset.packing else _IMPLEMENTATIONS
    return implementations[run.model.attention]


def _may_pack(model: PreTrainedModel) -> bool:
    """Whether every layer is attention; recurrent and state-space layers carry state over a boundary."""
    layers = getattr(model.config.get_text_config(), "layer_types", None) or []
    return bool(model._supports_attention_backend) and all(
        layer in {"full_attention", "sliding_attention"} for layer in layers
    )


def _from_pretrained(folder: Path, options: dict[str, Any]) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, **options)
    except (OSError, ValueError, SafetensorError, ImportError) as error:
        raise RunError(
            ExitReason.MODEL_UNAVAILABLE,
            f"cannot load the model from {folder}: {_first_line(error)}",
            _hint(error),
        ) from error
    return model


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _hint(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "the model brings code of its own; set model.trustRemoteCode: true where that is allowed"
    if "safetensors" in text:
        return "only safetensors weights are loaded; convert the model first"
    if isinstance(error, SafetensorError):
        return "a weight file is damaged or cut short; download the model again"
    return "model.uri must name a folder or repository with config.json, a tokenizer and safetensors weights"


def padding_token(model: PreTrainedModel) -> int:
    """A token id to fill rows up with; masked everywhere, so any valid id serves."""
    config = model.config.get_text_config()
    for candidate in (config.pad_token_id, config.eos_token_id):
        if isinstance(candidate, int) and 0 <= candidate < config.vocab_size:
            return candidate
    return 0
