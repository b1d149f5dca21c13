from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune_trainer.config import Adapter, ExitReason, RunError
from tests.artifact.conftest import Maker

if TYPE_CHECKING:
    from transformers import PretrainedConfig

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

TOKENS = list(range(5, 25))


def llama() -> PretrainedConfig:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )


def gpt2() -> PretrainedConfig:
    from transformers import GPT2Config

    return GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=32)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")
@pytest.mark.parametrize(
    ("config", "targets"),
    [
        (llama, ["all-linear"]),
        (llama, ["q_proj", "down_proj"]),
        (llama, ["embed_tokens"]),
        (gpt2, ["all-linear"]),
        (gpt2, ["c_attn"]),
        (gpt2, ["mlp.c_fc"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else ",".join(value),
)
def test_expected_tensors_are_what_peft_trains(
    config: Callable[[], PretrainedConfig], targets: list[str]
) -> None:
    from peft import get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    from finetune_trainer.artifact.loadback import expected_shapes
    from finetune_trainer.train.lora import wrap

    model = AutoModelForCausalLM.from_config(config())
    adapter = Adapter(rank=4, target_modules=targets)
    expected = expected_shapes(model, adapter)
    trained = get_peft_model_state_dict(wrap(model, adapter, seed=0), save_embedding_layers=False)
    assert expected == {name: tuple(value.shape) for name, value in trained.items()}


def test_an_adapter_without_effect_is_refused(maker: Maker) -> None:
    from finetune_trainer.artifact.base import load_adapter, load_base
    from finetune_trainer.artifact.loadback import check_effect

    folder = maker.save_adapter(maker.run(), scale=0)
    model = load_adapter(load_base(maker.base, precision="FP32"), folder)
    with pytest.raises(RunError, match="says exactly what it says without") as caught:
        check_effect(model, TOKENS)
    assert caught.value.reason is ExitReason.INVALID_CONFIGURATION


def test_an_adapter_that_breaks_the_model_is_refused(maker: Maker) -> None:
    from finetune_trainer.artifact.base import load_adapter, load_base
    from finetune_trainer.artifact.loadback import check_effect

    folder = maker.save_adapter(maker.run(), scale=1e30)
    model = load_adapter(load_base(maker.base, precision="FP32"), folder)
    with pytest.raises(RunError, match="infinities or NaN") as caught:
        check_effect(model, TOKENS)
    assert caught.value.reason is ExitReason.NON_FINITE_LOSS


def test_facts_of_a_file(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from finetune_trainer.artifact.loadback import read_facts
    from finetune_trainer.artifact.verify import TensorFacts

    save_file(
        {
            "good": torch.ones(2, 3, dtype=torch.bfloat16),
            "zero": torch.zeros(4),
            "nan": torch.tensor([1.0, float("nan")]),
            "empty": torch.zeros(0),
        },
        tmp_path / "x.safetensors",
    )
    assert read_facts(tmp_path / "x.safetensors") == {
        "good": TensorFacts((2, 3)),
        "zero": TensorFacts((4,), zero=True),
        "nan": TensorFacts((2,), finite=False),
        "empty": TensorFacts((0,), zero=True),
    }


def test_a_merge_that_went_wrong_is_refused(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel

    from finetune_trainer.artifact.merge import merge

    folder = maker.save_adapter(maker.run())
    change = merge(maker.base, folder, tmp_path / "good", TOKENS, trust_remote_code=False)
    assert change.error < 1e-6 < 1e-3 < change.effect
    assert not change.lost
    monkeypatch.setattr(
        PeftModel, "merge_and_unload", lambda model, safe_merge: model.unload(), raising=False
    )
    with pytest.raises(RunError, match="the merged model is refused"):
        merge(maker.base, folder, tmp_path / "bad", TOKENS, trust_remote_code=False)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(("break_it", "says"), [("config.json", "cannot load the base model"), (None, "")])
def test_a_broken_base_model_is_one_line(tmp_path: Path, base: Path, break_it: str | None, says: str) -> None:
    import shutil

    from finetune_trainer.artifact.base import load_base

    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    if break_it is None:
        assert load_base(copy, precision="BF16", gpu=False).dtype.is_floating_point
        return
    (copy / break_it).unlink()
    with pytest.raises(RunError, match=says) as caught:
        load_base(copy, precision="BF16", gpu=False)
    assert caught.value.reason is ExitReason.MODEL_UNAVAILABLE
