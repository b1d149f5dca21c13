"""How a model comes to the layout it is trained in."""

from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from finetune_trainer.config import Dataset, Event, Model, Output, RunConfig, Source, Training, Warned
from finetune_trainer.train import load, probes, zero
from finetune_trainer.train.attention import PACKED, PACKED_EAGER
from finetune_trainer.train.probes import settle_packing
from finetune_trainer.train.world import World
from tests.train.test_attention import ALONE, SIZES, Two

LLAMA = LlamaForCausalLM(LlamaConfig(**SIZES))
CAPPED = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=2.0))


@pytest.mark.parametrize(
    ("model", "asked", "tells_apart", "attention"),
    [
        (LLAMA, "SDPA", True, PACKED),
        (CAPPED, "SDPA", True, PACKED_EAGER),
        (CAPPED, "Eager", True, PACKED_EAGER),
        (LLAMA, "SDPA", False, "sdpa"),
        (CAPPED, "Eager", False, "eager"),
    ],
    ids=["packed", "packed by eager", "packed by eager, as asked", "padded", "padded, eager"],
)
def test_rows_are_padded_only_where_no_attention_keeps_examples_apart(
    model: PreTrainedModel,
    asked: str,
    tells_apart: bool,
    attention: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model.save_pretrained(tmp_path)
    run = RunConfig(
        name="x",
        uid="u",
        model=Model.model_validate({"uri": "file:///x", "attention": asked}),
        dataset=Dataset(sources=[Source(uri="file:///x")]),
        output=Output(uri="file:///x"),
        training=Training(precision="FP32", gradient_checkpointing=False),
    )
    base = load.load_base(run, tmp_path, ALONE, zero.configuration(run))
    monkeypatch.setattr(World, "agree", lambda _, answer: answer)
    if not tells_apart:
        monkeypatch.setattr(probes, "packing_is_safe", lambda *_: False)
    said: list[Event] = []
    settled = settle_packing(base, run, Two(), said.append, ALONE)  # type: ignore[arg-type]
    assert settled.model.config._attn_implementation == attention
    assert settled.packs is tells_apart
    assert [isinstance(event, Warned) for event in said] == [True] * (not tells_apart)
