"""Packed rows of a real model learn what its examples learn one by one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from finetune_trainer.config import Adapter
from finetune_trainer.train.attention import PACKED
from finetune_trainer.train.collate import Example, MicroBatch, pack, pad
from finetune_trainer.train.fused import fuse
from finetune_trainer.train.lora import wrap
from finetune_trainer.train.objective import Objective
from tests.fixtures.smollm2 import smollm2

FACTS = Path(__file__).parents[2] / "examples" / "quickstart" / "facts.jsonl"
Learned = tuple[float, dict[str, torch.Tensor]]
"""Sum of losses, and the adapter's gradient by parameter."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    """Eight conversations with the answers trained."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    made = []
    for line in FACTS.read_text(encoding="utf-8").splitlines()[::8]:
        row = json.loads(line)
        question = {"role": "user", "content": row["instruction"]}
        answer = {"role": "assistant", "content": row["output"]}
        prompt = tokenizer.apply_chat_template([question], add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template([question, answer], tokenize=False)
        tokens = np.array(tokenizer.encode(whole), dtype=np.int32)
        made.append((tokens, np.arange(len(tokens)) >= len(tokenizer.encode(prompt))))
    return made


@pytest.fixture(scope="module")
def objective() -> Objective:
    """The model in fp32 under an adapter that has learned something."""
    model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32, attn_implementation=PACKED)
    model.requires_grad_(False)
    adapted = wrap(model, Adapter(rank=8, dropout=0.0), seed=1)
    torch.manual_seed(2)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    fuse(adapted)
    return Objective(adapted, model, split=False).train()


def learn(objective: Objective, batches: list[MicroBatch]) -> Learned:
    objective.zero_grad()
    total = 0.0
    for batch in batches:
        loss = objective(batch)
        loss.backward()
        total += float(loss.detach())
    return total, {
        name: parameter.grad.clone()
        for name, parameter in objective.named_parameters()
        if parameter.grad is not None
    }


@pytest.fixture(scope="module")
def one_by_one(objective: Objective, examples: list[Example]) -> Learned:
    """As plain padding-free rows in transformers' own attention."""
    objective.causal.set_attn_implementation("sdpa")
    learned = learn(objective, [pad([example], 0) for example in examples])
    objective.causal.set_attn_implementation(PACKED)
    return learned


@pytest.mark.parametrize("rows", [1, 3])
def test_packed_equals_one_by_one(
    objective: Objective, examples: list[Example], one_by_one: Learned, rows: int
) -> None:
    loss, gradients = learn(objective, [pack(examples[row::rows]) for row in range(rows)])
    tokens = sum(int(trained.sum()) for _, trained in examples)
    expected, wanted = one_by_one
    assert expected / tokens > 1.0
    assert abs(loss - expected) / tokens <= 1e-5
    assert gradients.keys() == wanted.keys()
    assert len(gradients) == 2 * 7 * 30
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-5 * largest)
