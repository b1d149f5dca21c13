"""A fresh adapter changes nothing."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from finetune_trainer.config import Adapter, ExitReason, RunError
from finetune_trainer.train.attention import PACKED
from finetune_trainer.train.collate import pack
from finetune_trainer.train.fused import fuse
from finetune_trainer.train.lora import wrap
from tests.train.test_collate import example


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(  # type: ignore[call-arg]
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation=PACKED,
        )
    )


@pytest.mark.parametrize("fused", [True, False])
def test_a_fresh_adapter_gives_what_the_base_model_gives(fused: bool) -> None:
    batch = pack([example(range(9), [0] * 9), example(range(20, 55), [0] * 35)]).inputs()
    base = llama()
    with torch.no_grad():
        expected = base(**batch, use_cache=False).logits
        # Dropout is on, as in the first step of training.
        adapted = wrap(base, Adapter(rank=8, dropout=0.3), seed=3).train()
        if fused:
            assert fuse(adapted) == 14
        got = adapted(**batch, use_cache=False).logits
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_a_seed_is_an_adapter() -> None:
    one, same, other = (
        {
            name: value
            for name, value in wrap(llama(), Adapter(rank=8), seed=seed).named_parameters()
            if "lora_" in name
        }
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_layers_that_there_are_not_are_named_with_those_there_are() -> None:
    with pytest.raises(RunError, match="names query, which this model does not have") as caught:
        wrap(llama(), Adapter(target_modules=["q_proj", "query"]), seed=1)
    assert caught.value.reason is ExitReason.INVALID_CONFIGURATION
    assert "q_proj, up_proj, v_proj" in caught.value.hint
