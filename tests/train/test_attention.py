"""Examples in one row do not see each other."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.llama import modeling_llama

from finetune_trainer.train.attention import (
    PACKED,
    PACKED_EAGER,
    UnpackableError,
    packed_attention,
    packed_eager_attention,
)
from finetune_trainer.train.collate import pack
from finetune_trainer.train.probes import packing_is_safe
from finetune_trainer.train.step import Split
from finetune_trainer.train.world import World
from tests.train.test_collate import example

ALONE = World(rank=0, size=1, local_rank=0, device=torch.device("cpu"))
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model(
    kind: type[PreTrainedModel], config: PreTrainedConfig, implementation: str = PACKED
) -> PreTrainedModel:
    torch.manual_seed(0)
    made: PreTrainedModel = kind(config).eval()
    made.set_attn_implementation(implementation)
    return made


class Two:
    """A split of two examples."""

    def __len__(self) -> int:
        return 2

    def tokens(self, index: int) -> NDArray[np.int32]:
        return example([index + 3, 7, 9, 11, 2, 5, 8, 13, 21, 1], [0])[0]


@pytest.mark.parametrize("window", [None, 3])
def test_each_example_attends_to_itself_alone(window: int | None) -> None:
    torch.manual_seed(2)
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    bounds = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
    got, _ = packed_attention(
        torch.nn.Identity(), query, key, value, None, sliding_window=window, cu_seq_lens_q=bounds
    )
    position = torch.arange(12)
    segment = torch.bucketize(position, bounds[1:].long(), right=True)
    allowed = (segment[:, None] == segment[None, :]) & (position[:, None] >= position[None, :])
    if window is not None:
        allowed &= position[:, None] - position[None, :] < window
    dense = scaled_dot_product_attention(
        query,
        key.repeat_interleave(2, dim=1),
        value.repeat_interleave(2, dim=1),
        attn_mask=allowed,
    )
    torch.testing.assert_close(got, dense.transpose(1, 2))


@pytest.mark.parametrize("implementation", [PACKED, PACKED_EAGER, "eager"])
def test_a_packed_row_gives_what_each_example_gives_alone(implementation: str) -> None:
    llama = model(LlamaForCausalLM, LlamaConfig(**SIZES))
    llama.set_attn_implementation(implementation)
    one, two = example(range(9), [0] * 9), example(range(20, 35), [0] * 15)
    with torch.no_grad():
        together = llama(**pack([one, two]).inputs(), use_cache=False).logits[0]
        llama.set_attn_implementation("sdpa")
        alone = [llama(input_ids=torch.tensor([e[0].tolist()])).logits[0] for e in (one, two)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "config", "safe"),
    [
        (LlamaForCausalLM, LlamaConfig(**SIZES), {PACKED, PACKED_EAGER}),
        (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=4), {PACKED, PACKED_EAGER}),
        (Gemma2ForCausalLM, Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=2.0), {PACKED_EAGER}),
    ],
    ids=["llama", "mistral-with-a-window", "gemma2-with-capped-scores"],
)
@pytest.mark.parametrize("implementation", [PACKED, PACKED_EAGER])
def test_the_probe_knows_what_may_be_packed(
    kind: type[PreTrainedModel], config: PreTrainedConfig, safe: set[str], implementation: str
) -> None:
    # Of a split the probe reads its tokens alone.
    found = packing_is_safe(model(kind, config, implementation), cast("Split", Two()), ALONE)
    assert found is (implementation in safe)


def test_eager_attention_never_sees_two_examples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scores of the whole row are made: a row costs what its examples cost."""
    seen: list[int] = []
    own = modeling_llama.eager_attention_forward

    def watched(module: torch.nn.Module, query: torch.Tensor, *rest: Any, **named: Any) -> Any:
        seen.append(query.shape[2])
        return own(module, query, *rest, **named)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", watched)
    llama = model(LlamaForCausalLM, LlamaConfig(**SIZES), PACKED_EAGER)
    llama(**pack([example(range(9), [0] * 9), example(range(20, 35), [0] * 15)]).inputs(), use_cache=False)
    assert seen == [9, 15] * SIZES["num_hidden_layers"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention_mask": torch.ones(1, 1, 4, 4)},
        {"cu_seq_lens_q": None},
        {"softcap": 30.0},
        {"s_aux": torch.zeros(2)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_it_cannot_do_it_refuses(wrong: dict[str, Any]) -> None:
    tensor = torch.randn(1, 2, 4, 8)
    given: dict[str, Any] = {
        "attention_mask": None,
        "cu_seq_lens_q": torch.tensor([0, 4], dtype=torch.int32),
        **wrong,
    }
    with pytest.raises(UnpackableError):
        packed_attention(torch.nn.Identity(), tensor, tensor, tensor, **given)


@pytest.mark.parametrize(
    ("module", "wrong"),
    [
        (modeling_llama.LlamaRMSNorm(4), {"attention_mask": torch.ones(1, 1, 4, 4)}),
        (modeling_llama.LlamaRMSNorm(4), {"cu_seq_lens_q": None}),
        # A module whose file has no eager attention.
        (torch.nn.Identity(), {}),
    ],
    ids=["mask", "no boundaries", "no eager attention"],
)
def test_what_eager_cannot_do_it_refuses(module: torch.nn.Module, wrong: dict[str, Any]) -> None:
    tensor = torch.randn(1, 2, 4, 8)
    bounds = torch.tensor([0, 4], dtype=torch.int32)
    given: dict[str, Any] = {"attention_mask": None, "cu_seq_lens_q": bounds, **wrong}
    with pytest.raises(UnpackableError):
        packed_eager_attention(module, tensor, tensor, tensor, **given)
