"""A fresh base model and a published adapter on it, the way anybody else would load them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from finetune_trainer.config import ExitReason, Quantization, RunError
from finetune_trainer.quantized import four_bit

Precision = Literal["BF16", "FP16", "FP32", "own"]

_DTYPES: dict[str, torch.dtype | str] = {
    "BF16": torch.bfloat16,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "own": "auto",
}
_HEADROOM = 1.2
"""A model counts as fitting one GPU when this many times its weights' bytes are free there."""


def load_base(
    folder: Path,
    *,
    precision: Precision,
    quantization: Quantization | None = None,
    trust_remote_code: bool = False,
    gpu: bool = True,
) -> PreTrainedModel:
    """Load a causal LM for inference.

    Args:
        folder: holds `config.json` and safetensors weights.
        precision: of the weights, or of the computation under quantisation; `own` is the checkpoint's.
        quantization: hold the weights in 4 bits.
        trust_remote_code: run code that the model brings along.
        gpu: use GPUs where this process sees any.

    Raises:
        RunError: ModelUnavailable, the folder holds no such model.
    """
    options: dict[str, Any] = {
        "dtype": _DTYPES[precision],
        "device_map": _devices(folder) if gpu and torch.cuda.is_available() else {"": "cpu"},
        "trust_remote_code": trust_remote_code,
        "use_safetensors": True,
    }
    if quantization is not None:
        options["quantization_config"] = four_bit(quantization, _DTYPES[precision])
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, **options)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise RunError(
            ExitReason.MODEL_UNAVAILABLE, f"cannot load the base model from {folder}: {_line(error)}"
        ) from error
    # The model's own defaults (sampling, penalties) would speak into every generation.
    model.generation_config = GenerationConfig()
    model.eval()
    return model


def load_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """Put the adapter in `folder` on a base model, by plain PEFT.

    Raises:
        RunError: InvalidConfiguration, it does not fit this base model.
    """
    try:
        with warnings.catch_warnings():
            # PEFT only warns of tensors that are missing or left over.
            warnings.filterwarnings("error", message="Found (missing|unexpected) adapter keys")
            return PeftModel.from_pretrained(model, folder).eval()
    except (RuntimeError, ValueError, UserWarning) as error:
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"the adapter in {folder} does not fit the base model: {_line(error)}",
        ) from error


def _devices(folder: Path) -> str | dict[str, int]:
    """The first GPU where the weights fit there, else all of them (and host memory for the rest)."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free, _ = torch.cuda.mem_get_info(0)
    return {"": 0} if size * _HEADROOM < free else "auto"


def _line(error: BaseException) -> str:
    """The first line that says something, of the many that the libraries write."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else type(error).__name__
