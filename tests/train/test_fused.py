"""The fused LoRA layer against PEFT's own."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from finetune_trainer.train import arithmetic
from finetune_trainer.train.fused import fuse


def adapted(dtype: torch.dtype = torch.float32, **options: Any) -> PeftModel:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
    )
    model = get_peft_model(
        LlamaForCausalLM(config).to(dtype),  # type: ignore[arg-type]
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **options),
        autocast_adapter_dtype=False,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


def gradients(model: PeftModel, ids: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("rslora", [False, True])
def test_loss_and_gradients_are_pefts(dropout: float, rslora: bool) -> None:
    plain = adapted(lora_dropout=dropout, use_rslora=rslora).train()
    fused = copy.deepcopy(plain)
    assert fuse(fused) == 14
    ids = torch.randint(0, 97, (2, 11))
    loss, expected = gradients(plain, ids)
    ours, got = gradients(fused, ids)
    assert ours == pytest.approx(loss, abs=1e-6)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)


def test_widened_bf16_is_as_near_to_fp32_as_native_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, _ = gradients(adapted(), ids := torch.randint(0, 97, (2, 11)))
    native, native_gradients = gradients(adapted(torch.bfloat16), ids)
    monkeypatch.setattr(arithmetic, "_multiplies_bf16", lambda: False)
    model = adapted(torch.bfloat16)
    fuse(model)
    widened, widened_gradients = gradients(model, ids)
    assert abs(widened - exact) <= max(abs(native - exact), 2e-2)
    for name, gradient in widened_gradients.items():
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient, native_gradients[name], atol=2e-3, rtol=0.1)


def test_an_adapter_that_is_switched_off_stays_off() -> None:
    model = adapted().eval()
    fuse(model)
    ids = torch.randint(0, 97, (1, 7))
    with torch.no_grad():
        base = model.get_base_model()
        tuned = model(input_ids=ids).logits
        with model.disable_adapter():
            off = model(input_ids=ids).logits
        assert not torch.allclose(tuned, off)
        model.merge_adapter()
        torch.testing.assert_close(base(input_ids=ids).logits, tuned, atol=1e-5, rtol=1e-4)
