from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from finetune_trainer.config import (
    Adapter,
    Dataset,
    Layout,
    Model,
    Output,
    RunConfig,
    Source,
    Training,
    Workers,
)
from finetune_trainer.data.report import File, Report, SplitCount
from finetune_trainer.storage import open_output

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAIRS = [
    ("What colour is the harbour?", "The harbour is green."),
    ("Who keeps the lighthouse?", "Mara keeps the lighthouse."),
    ("When does the ferry leave?", "The ferry leaves at nine."),
    ("Where is the market?", "The market is behind the mill."),
]


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cache or Secret of this machine plays a part."""
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FINETUNE_SECRETS", str(tmp_path / "secrets"))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with ChatML's tokens, as files of a model."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([f"{question} {reply}" for question, reply in PAIRS], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


@pytest.fixture(scope="session")
def base(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers, with its tokenizer."""
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base") / "tiny-llama"
    shutil.copytree(tokenizer_folder, folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=384,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    return folder


@dataclass
class Maker:
    """Builds what the stages before publication leave behind."""

    base: Path
    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    def run(self, **changes: object) -> RunConfig:
        config = RunConfig(
            name="harbour",
            uid="uid-1",
            model=Model(uri=f"file://{self.base}"),
            dataset=Dataset(sources=[Source(uri="file:///data/rows.jsonl")]),
            adapter=Adapter(rank=4, alpha=8),
            training=Training(precision="FP32"),
            workers=Workers(gpus_per_worker=0),
            output=Output(uri=f"file://{self.root / 'out'}"),
        )
        return config.model_copy(update=changes)

    def save_adapter(self, run: RunConfig, *, scale: float = 0.05) -> Path:
        """An adapter as rank 0 saves it; `scale` 0 leaves it as it was before the first step."""
        import torch
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM

        from finetune_trainer.train.lora import wrap

        wrapped = wrap(AutoModelForCausalLM.from_pretrained(self.base), run.adapter, seed=1)
        torch.manual_seed(2)
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter.data, std=scale)
        folder = self.work / "adapter"
        folder.mkdir(parents=True)
        save_file(
            {key: value.contiguous() for key, value in get_peft_model_state_dict(wrapped).items()},
            folder / "adapter_model.safetensors",
        )
        wrapped.peft_config["default"].save_pretrained(str(folder))
        return folder

    def save_results(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        facts = {
            "step": 12,
            "total_steps": 12,
            "test_loss_before": 4.25,
            "test_loss_after": 0.125,
            "validation_loss": 0.25,
            "train_loss": 0.0625,
            "tokens": 3210,
            "seconds": 7.5,
            "world_size": 2,
            "zero_stage": 2,
            "peak_memory_bytes": 1 << 20,
            "versions": {"torch": "2.13.0", "peft": "0.21.2"},
            "log": [{"event": "step", "step": 12, "loss": 0.0625}],
        }
        (self.work / "training.json").write_text(json.dumps(facts))

    def publish_prepared(
        self,
        run: RunConfig,
        pairs: Sequence[tuple[str, str]] = tuple(PAIRS),
        template: str = CHATML,
        told: Report | None = None,
    ) -> None:
        folder = self.root / "prepared"
        tokenizer = Tokenizer.from_file(str(self.base / "tokenizer.json"))
        for name, chosen in (("train", PAIRS[:1]), ("validation", []), ("test", pairs)):
            write_split(folder / name, [encode(tokenizer, question, reply) for question, reply in chosen])
        (folder / "chat_template.jinja").write_text(template)
        (folder / "report.json").write_text((told or report(len(pairs))).model_dump_json())
        open_output(run.output.uri).publish(folder, Layout(run.uid).prepared)

    def all(self, run: RunConfig) -> Path:
        """Everything; returns the path of run.json."""
        self.save_adapter(run)
        self.save_results()
        self.publish_prepared(run)
        path = self.root / "run.json"
        run.dump(path)
        return path


@pytest.fixture
def maker(base: Path, tmp_path: Path) -> Maker:
    return Maker(base, tmp_path)


def encode(tokenizer: Tokenizer, question: str, reply: str) -> tuple[list[int], list[bool]]:
    prompt = tokenizer.encode(
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    ).ids
    learned = tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False).ids
    return prompt + learned, [False] * len(prompt) + [True] * len(learned)


def write_split(folder: Path, examples: Sequence[tuple[list[int], list[bool]]]) -> None:
    folder.mkdir(parents=True)
    lengths = [len(tokens) for tokens, _ in examples]
    np.save(folder / "tokens.npy", np.array([t for tokens, _ in examples for t in tokens], dtype=np.int32))
    np.save(folder / "trained.npy", np.array([f for _, flags in examples for f in flags], dtype=np.bool_))
    np.save(folder / "offsets.npy", np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
    np.save(folder / "rows.npy", np.arange(len(examples), dtype=np.int64))


def report(tests: int = 4, **changes: Any) -> Report:
    made = Report(
        rows=1 + tests,
        examples=1 + tests,
        tokens=200,
        trained_tokens=50,
        splits={
            "train": SplitCount(rows=1, examples=1),
            "validation": SplitCount(),
            "test": SplitCount(rows=tests, examples=tests),
        },
        files=[File(name="rows.jsonl", format="Alpaca", rows=1 + tests)],
        template="Model",
        end_of_turn="<|im_end|>",
        dataset_hash="ab" * 32,
    )
    return made.model_copy(update=changes)
