"""TRL's SFTTrainer over rows given as tokens: one JSON line with its speed, memory and losses.

    python trl_sft.py rows.json SETTINGS

Runs in an environment of its own, see `requirements.txt` beside it; `benchmarks/throughput.py` starts it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from measure import Meter, settings
from peft import LoraConfig, get_peft_model
from torch.utils.data import Sampler, SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def in_order(trainer: SFTTrainer, dataset: Dataset | None = None) -> Sampler[int]:
    """The rows in the order given, so that all contenders learn the same in the same order."""
    return SequentialSampler(dataset or trainer.train_dataset)


def main() -> None:
    """Train and print."""
    chosen = settings(sys.argv[2])
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    dtype = torch.bfloat16 if chosen.bf16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(chosen.model, dtype=dtype)
    torch.manual_seed(chosen.seed)
    adapted = get_peft_model(
        model,
        LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"),
    )
    packed = chosen.layout == "packed"
    meter = Meter()
    SFTTrainer.training_step = meter.around(SFTTrainer.training_step)
    SFTTrainer._get_train_sampler = in_order
    trainer = SFTTrainer(
        model=adapted,
        args=SFTConfig(
            output_dir=chosen.folder,
            per_device_train_batch_size=1 if packed else chosen.global_batch,
            gradient_accumulation_steps=1,
            num_train_epochs=1,
            learning_rate=chosen.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            max_length=chosen.row_tokens,
            packing=packed,
            gradient_checkpointing=False,
            bf16=chosen.bf16,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
            seed=chosen.seed,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(chosen.model),
    )
    trainer.add_callback(meter)
    trainer.train()
    print(meter.line())


if __name__ == "__main__":
    main()
