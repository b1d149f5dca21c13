"""How a base model is held under QLoRA: the same where it is trained over and where that is proven."""

from __future__ import annotations

import torch
from transformers import BitsAndBytesConfig

from finetune_trainer.config import Quantization


def four_bit(
    quantization: Quantization, compute: torch.dtype | str, storage: torch.dtype = torch.uint8
) -> BitsAndBytesConfig:
    """The options with which transformers quantises weights as it loads them.

    Args:
        quantization: the job's.
        compute: in which dtype the blocks are multiplied.
        storage: as which dtype they are kept; only bytes are moved, nothing is converted.
    """
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.type.lower(),
        bnb_4bit_use_double_quant=quantization.double_quantization,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_storage=storage,
    )
