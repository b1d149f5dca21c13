"""Where the base model's weights go, and which attention it gets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from finetune_trainer.config import (
    Adapter,
    Dataset,
    DeepSpeed,
    Model,
    Output,
    Quantization,
    RunConfig,
    Source,
    Training,
)
from finetune_trainer.train import load, zero
from finetune_trainer.train.attention import PACKED
from finetune_trainer.train.world import World

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def run_config(*, packing: bool = True, stage: int = 2, quantised: bool = False) -> RunConfig:
    return RunConfig(
        name="x",
        uid="u",
        model=Model(uri="file:///x"),
        dataset=Dataset(sources=[Source(uri="file:///x")], packing=packing),
        output=Output(uri="file:///x"),
        training=Training(precision="FP32", gradient_checkpointing=False),
        adapter=Adapter(quantization=Quantization() if quantised else None),
        deepspeed=DeepSpeed.model_validate({"stage": stage}),
    )


def load_on(device: torch.device, run: RunConfig, folder: Path = Path("/nowhere")) -> load.Base:
    world = World(rank=1, size=2, local_rank=1, device=device)
    return load.load_base(run, folder, world, zero.configuration(run))


@pytest.mark.parametrize(
    ("device", "stage", "quantised", "place"),
    [
        (CPU, 2, False, None),
        (GPU, 2, False, GPU),
        (GPU, 0, False, GPU),
        (GPU, 3, False, None),
        (GPU, 3, True, GPU),
        (CPU, 2, True, CPU),
    ],
)
def test_weights_are_read_onto_the_ranks_device_unless_they_are_split(
    device: torch.device,
    stage: int,
    quantised: bool,
    place: torch.device | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def from_pretrained(folder: Path, options: dict[str, Any]) -> PreTrainedModel:
        asked.update(options)
        return LlamaForCausalLM(LlamaConfig(**SIZES))

    monkeypatch.setattr(load, "_from_pretrained", from_pretrained)
    load_on(device, run_config(stage=stage, quantised=quantised))
    assert asked.get("device_map") == (None if place is None else {"": place})


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(
    ("model", "padded"),
    [
        (LlamaForCausalLM(LlamaConfig(**SIZES)), "sdpa"),
        (Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8)), "eager"),
    ],
    ids=["llama", "gemma2-with-capped-scores"],
)
def test_what_sdpa_cannot_serve_gets_eager_attention(
    model: PreTrainedModel, padded: str, packing: bool, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    run = run_config(packing=packing)
    base = load_on(CPU, run, tmp_path)
    assert base.packs is packing
    assert base.model.config._attn_implementation == (PACKED if packing else padded)
    base = load.use_padding(base, run)
    assert not base.packs
    assert base.model.config._attn_implementation == padded
