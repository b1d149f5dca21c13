"""LLaMA-Factory's supervised fine-tuning with neat packing over rows given as tokens: one JSON line.

    python llamafactory_sft.py rows.json SETTINGS

Runs in an environment of its own; `benchmarks/throughput.py` starts it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
from llamafactory.train.tuner import run_exp
from measure import Meter, settings


def main() -> None:
    """Train and print."""
    chosen = settings(sys.argv[2])
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(chosen.folder)
    # Each row's text is its number, and its tokens are looked up: all contenders learn the same ones.
    numbered = [{"instruction": str(number), "input": "", "output": "-"} for number in range(len(rows))]
    (folder / "rows.json").write_text(json.dumps(numbered), encoding="utf-8")
    (folder / "dataset_info.json").write_text('{"rows": {"file_name": "rows.json"}}', encoding="utf-8")

    def encoded(_: Any, prompt: list[dict[str, str]], **__: Any) -> tuple[list[int], list[int]]:
        row = rows[int(prompt[0]["content"])]
        return row["input_ids"], row["labels"]

    SupervisedDatasetProcessor._encode_data_example = encoded
    meter = Meter()
    CustomSeq2SeqTrainer.training_step = meter.around(CustomSeq2SeqTrainer.training_step)
    run_exp(
        {
            "stage": "sft",
            "do_train": True,
            "model_name_or_path": chosen.model,
            "template": "chatml",
            "dataset_dir": str(folder),
            "dataset": "rows",
            "output_dir": str(folder / "out"),
            "finetuning_type": "lora",
            "lora_rank": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.0,
            "lora_target": "all",
            "cutoff_len": chosen.row_tokens,
            "packing": True,
            "neat_packing": True,
            "disable_shuffling": True,
            "disable_gradient_checkpointing": True,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "num_train_epochs": 1.0,
            "learning_rate": chosen.learning_rate,
            "lr_scheduler_type": "constant",
            "bf16": chosen.bf16,
            "use_cpu": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "dataloader_pin_memory": False,
            "overwrite_cache": True,
            "seed": chosen.seed,
        },
        callbacks=[meter],
    )
    print(meter.line())


if __name__ == "__main__":
    main()
