"""One rank of a gang that trains the same tiny model in many ways and prints what came of each.

    python equivalences.py CASES.json OUT.json      (environment as torchrun sets it)

A case: {"name", "stage", "precision", "packs", "row_tokens", "checkpointing", "dropout", "steps",
"rate": the highest learning rate, "restart": step to go back to and train on from (optional), "continue":
name of an earlier snapshot file}.
"""

import json
import sys
from pathlib import Path
from typing import Any

from finetune_trainer.train.world import join

world = join(gpus=False)

import numpy as np  # noqa: E402  (torch and DeepSpeed only after the world is set up, as in a rank)
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from finetune_trainer.config import (  # noqa: E402
    Adapter,
    Dataset,
    DeepSpeed,
    Model,
    Output,
    RunConfig,
    Source,
    Training,
)
from finetune_trainer.train import attention, zero  # noqa: E402
from finetune_trainer.train.batches import schedule  # noqa: E402
from finetune_trainer.train.engine import Engine  # noqa: E402
from finetune_trainer.train.fused import fuse  # noqa: E402
from finetune_trainer.train.load import DTYPES  # noqa: E402
from finetune_trainer.train.lora import wrap  # noqa: E402
from finetune_trainer.train.objective import Objective  # noqa: E402
from finetune_trainer.train.step import Shape, Stepper  # noqa: E402

EXAMPLES, BATCH, VOCABULARY = 60, 8, 199


class Rows:
    """A split in memory: ragged examples, some without a single trained token."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        lengths = random.integers(3, 70, EXAMPLES)
        self._tokens: list[NDArray[np.int32]] = [
            random.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths
        ]
        self._trained: list[NDArray[np.bool_]] = [
            random.random(n) < share for n, share in zip(lengths, [0.6, 0.2, 0.0] * 20, strict=True)
        ]
        for flags in self._trained:
            flags[0] = False
        self.lengths = lengths.astype(np.int64)
        self.trained_counts = np.array([flags.sum() for flags in self._trained], dtype=np.int64)
        self.rows = np.arange(EXAMPLES)

    def __len__(self) -> int:
        return EXAMPLES

    def tokens(self, index: int) -> NDArray[np.int32]:
        return self._tokens[index]

    def trained(self, index: int) -> NDArray[np.bool_]:
        return self._trained[index]


def train(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    run = RunConfig(
        name="x",
        uid="u",
        model=Model(uri="file:///x"),
        dataset=Dataset(sources=[Source(uri="file:///x")]),
        output=Output(uri="file:///x"),
        training=Training(
            precision=case.get("precision", "FP32"),
            max_gradient_norm=0.5,
            weight_decay=0.1,
            learning_rate=5e-3,
        ),
        adapter=Adapter(rank=4, alpha=8, dropout=case.get("dropout", 0.0)),
        deepspeed=DeepSpeed(stage=case["stage"]),
    )
    packs = case.get("packs", True)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(  # type: ignore[call-arg]
            vocab_size=VOCABULARY,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation=attention.PACKED if packs else "sdpa",
        )
    ).to(DTYPES[run.training.precision])  # type: ignore[arg-type]
    model.requires_grad_(False)
    if case.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    adapted = wrap(model, run.adapter, seed=1)
    if case["stage"] < 3 and case.get("fused", True):
        fuse(adapted)
    engine = Engine(Objective(adapted, model, split=case["stage"] == 3), zero.configuration(run), 0.1)
    engine.module.train()
    split = Rows()
    stepper = Stepper(
        engine, Shape(packs, case.get("row_tokens", 128), case.get("micro_batch", 3), 0), world, lambda: None
    )
    # The last batch is ragged: three examples short of eight.
    examples = case["steps"] * BATCH - 3
    plan = schedule(EXAMPLES, global_batch=BATCH, epochs=examples / EXAMPLES, max_steps=None, seed=9)
    assert plan.total_steps == case["steps"]
    assert len(plan.batch(case["steps"] - 1)) == BATCH - 3
    losses: list[float] = []
    norms: list[float] = []

    def steps(first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(1000 + step)
            batch = plan.batch(step)
            total = world.sum([stepper.accumulate(split, batch)])[0]
            norms.append(engine.step(case.get("rate", 2e-2) * (step + 1) / case["steps"]))
            losses.append(total / max(1, int(split.trained_counts[batch].sum())))

    idle = stepper._collate(split, [0], [0])
    first = 0
    if "continue" in case:
        first = case["continue_at"]
        engine.restore(load_file(folder / case["continue"]), count=first, idle=idle)
    restart = case.get("restart")
    if restart is None:
        steps(first, case["steps"])
    else:
        steps(0, restart)
        snapshot = engine.snapshot()
        steps(restart, case["steps"])
        undisturbed = engine.weights()
        tail = losses[restart:]
        engine.restore(snapshot, count=restart, idle=idle)
        steps(restart, case["steps"])
        if world.leader:
            save_file(snapshot, folder / f"{case['name']}.safetensors")
    weights = engine.weights()
    evaluation = stepper.evaluate(split)
    result: dict[str, Any] = {
        "losses": losses,
        "norms": norms[: case["steps"]],
        "weights": {name: value.flatten().tolist() for name, value in weights.items()},
        "evaluation": evaluation,
    }
    if restart is not None:
        result["losses_again"] = losses[case["steps"] :]
        result["losses"] = losses[: case["steps"]]
        result["tail"] = tail
        result["same_weights"] = all(torch.equal(undisturbed[name], weights[name]) for name in weights)
    return result


cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
results = {case["name"]: train(case, out.parent) for case in cases}
if world.leader:
    out.write_text(json.dumps(results))
world.barrier()
