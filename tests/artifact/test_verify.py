from __future__ import annotations

import pytest

from finetune_trainer.artifact.verify import TensorFacts, check_config, check_files, check_tensors
from finetune_trainer.config import Adapter, ExitReason, RunError

A, B = "base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight"
C, D = "base_model.model.k.lora_A.weight", "base_model.model.k.lora_B.weight"
EXPECTED = {A: (4, 16), B: (8, 4), C: (4, 16), D: (2, 4)}
GOOD = {name: TensorFacts(shape) for name, shape in EXPECTED.items()}
ZERO_B = TensorFacts((8, 4), zero=True)


@pytest.mark.parametrize(
    "tensors",
    [
        GOOD,
        GOOD | {B: ZERO_B},
        GOOD | {A: TensorFacts((4, 16), zero=True)},
        GOOD | {"extra": TensorFacts((1,))},
    ],
    ids=["whole", "one module untouched", "zero A", "more than targeted"],
)
def test_accepts(tensors: dict[str, TensorFacts]) -> None:
    check_tensors(tensors, EXPECTED)


@pytest.mark.parametrize(
    ("tensors", "reason", "says"),
    [
        ({A: GOOD[A], B: GOOD[B]}, ExitReason.INTERNAL, f"{C}, {D} of 4 tensors missing"),
        ({}, ExitReason.INTERNAL, f"{A}, {B}, {C} and 1 more of 4 tensors missing"),
        (GOOD | {B: TensorFacts((0,), zero=True)}, ExitReason.INTERNAL, f"{B} of 4 tensors empty"),
        (GOOD | {D: TensorFacts((2, 8))}, ExitReason.INTERNAL, f"{D} has shape [2, 8] in place of [2, 4]"),
        (
            GOOD | {C: TensorFacts((4, 16), finite=False)},
            ExitReason.NON_FINITE_LOSS,
            f"{C} of 4 tensors hold",
        ),
        (
            GOOD | {B: ZERO_B, D: TensorFacts((2, 4), zero=True)},
            ExitReason.INVALID_CONFIGURATION,
            "nothing was learned, all 2 lora_B",
        ),
    ],
    ids=["fewer modules", "nothing", "empty", "wrong shape", "not finite", "nothing learned"],
)
def test_refuses(tensors: dict[str, TensorFacts], reason: ExitReason, says: str) -> None:
    with pytest.raises(RunError) as caught:
        check_tensors(tensors, EXPECTED)
    assert caught.value.reason is reason
    assert caught.value.message.startswith("the adapter is refused: ")
    assert says in caught.value.message


def test_embeddings_start_with_a_zero_a() -> None:
    name = "base_model.model.embed_tokens.lora_embedding_"
    expected = {f"{name}A": (4, 100), f"{name}B": (16, 4)}
    fresh = {f"{name}A": TensorFacts((4, 100), zero=True), f"{name}B": TensorFacts((16, 4))}
    with pytest.raises(RunError, match="nothing was learned"):
        check_tensors(fresh, expected)
    check_tensors(fresh | {f"{name}A": TensorFacts((4, 100))}, expected)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "adapter_model.safetensors is missing"),
        (["adapter_model.safetensors"], "adapter_config.json is missing"),
        (["adapter_config.json", "adapter_model.bin"], "adapter_model.bin is a pickle"),
        (["adapter_config.json", "adapter_model.safetensors", "extra.pt"], "extra.pt is a pickle"),
    ],
)
def test_files(names: list[str], says: str) -> None:
    with pytest.raises(RunError, match=says):
        check_files(names)


def test_files_of_an_adapter() -> None:
    check_files(["adapter_config.json", "adapter_model.safetensors", "README.md"])


CONFIG = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "use_rslora": False}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"r": 8}, "says r 8, and the job 16"),
        ({"lora_alpha": 16}, "says lora_alpha 16, and the job 32"),
        ({"use_rslora": True}, "says use_rslora True, and the job False"),
        ({"peft_type": "IA3"}, "says peft_type 'IA3'"),
    ],
)
def test_config(change: dict[str, object], says: str) -> None:
    check_config(CONFIG, Adapter())
    with pytest.raises(RunError, match=says):
        check_config(CONFIG | change, Adapter())
