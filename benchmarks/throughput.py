"""Training speed beside TRL and LLaMA-Factory: same model, rows, order, precision and trained tokens.

    python benchmarks/throughput.py --model DIR --data FILE [--rows 32] [--repeats 3] [--precision BF16]

`finetune run` trains rank 16 on all linear layers with rows of FILE (Alpaca). TRL's SFTTrainer, packed and
padded, and LLaMA-Factory with neat packing get the same tokens in the same order, with gradient checkpointing
off everywhere, in environments of their own that are made once under ~/.cache. The contenders run in turns.

What is compared is tokens a second without padding, over all steps but the first. One JSON line comes out;
only ratios mean anything on a busy machine.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune_trainer.data.arrays import Examples
from finetune_trainer.train.batches import schedule, spread
from finetune_trainer.train.collate import pack

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "finetune-operator" / "peers"
GLOBAL_BATCH = 8
ROW_TOKENS = 1024
MAX_LENGTH = 1000
"""Below ROW_TOKENS by more than LLaMA-Factory needs for itself, so that it drops no row."""
LEARNING_RATE = "2e-4"
SEED = 42
CONTENDERS = ("ours", "trl_packed", "trl_padded", "llamafactory_packed")


@dataclass(frozen=True)
class Outcome:
    """One run of one contender."""

    tokens_per_second: float
    memory_bytes: int
    padding: float
    """Share of computed positions that were padding."""
    losses: list[float]
    """Of each optimizer step."""


def job(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The job that `finetune run` gets."""
    return {
        "apiVersion": "finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "throughput"},
        "spec": {
            "model": {"uri": arguments.model.absolute().as_uri()},
            "dataset": {
                "sources": [{"uri": (folder / "rows.json").as_uri(), "format": "Alpaca"}],
                "maxLength": MAX_LENGTH,
                "split": {"train": 1, "validation": 0, "test": 0, "seed": SEED},
            },
            "adapter": {"rank": 16, "alpha": 32, "dropout": "0"},
            "training": {
                "epochs": "1",
                "learningRate": LEARNING_RATE,
                "scheduler": "Constant",
                "warmupRatio": "0",
                "maxGradientNorm": "1",
                "globalBatchSize": GLOBAL_BATCH,
                "precision": arguments.precision,
                "gradientCheckpointing": False,
                "logSteps": 1,
            },
            "checkpoint": {"steps": 100_000},
            "workers": {"replicas": 1, "gpusPerWorker": 0},
            "output": {"uri": (folder / "output").as_uri()},
        },
    }


def ours(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Run the job and read its events."""
    # A fresh run has an identifier of its own; only the last one's rows are looked for.
    shutil.rmtree(folder / "output", ignore_errors=True)
    (folder / "job.json").write_text(json.dumps(job(arguments, folder)), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("finetune")), "run", "--json", "--fresh"]
    output = _run([*command, str(folder / "job.json")])
    steps = [event for event in map(json.loads, output.splitlines()) if event["event"] == "step"]
    later = [
        (step["tokens"] - before["tokens"], step["tokens_per_second"])
        for before, step in itertools.pairwise(steps)
    ]
    tokens = sum(count for count, _ in later)
    return Outcome(
        tokens_per_second=tokens / sum(count / speed for count, speed in later),
        memory_bytes=steps[-1]["memory_bytes"],
        padding=padding(folder),
        losses=[step["loss"] for step in steps],
    )


def link_model(model: Path, folder: Path, precision: str) -> None:
    """Leave the model in `folder/model`, the precision in its config: LLaMA-Factory goes by that alone."""
    (folder / "model").mkdir()
    for file in model.absolute().iterdir():
        (folder / "model" / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = {"BF16": "bfloat16", "FP32": "float32"}[precision]
    (folder / "model" / "config.json").unlink()
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")


def peer(name: str, arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Run a peer on the same tokens in the same order."""
    kind, _, layout = name.partition("_")
    settings = {
        "model": str(folder / "model"),
        "layout": layout,
        "bf16": arguments.precision == "BF16",
        "global_batch": GLOBAL_BATCH,
        "row_tokens": ROW_TOKENS,
        "learning_rate": float(LEARNING_RATE),
        "seed": SEED,
    }
    with tempfile.TemporaryDirectory() as work:
        command = [
            str(environment(kind)),
            str(HERE / "peers" / f"{kind}_sft.py"),
            str(folder / "tokens.json"),
        ]
        output = _run([*command, json.dumps({**settings, "folder": work})])
    return Outcome(**json.loads(output.splitlines()[-1]))


def environment(kind: str) -> Path:
    """The Python of a peer's environment, which is made at the first call."""
    requirements = HERE / "peers" / f"{kind}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"{kind}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
        _run([uv, "pip", "sync", "--quiet", "--python", str(python), str(requirements)])
        (folder / ".complete").touch()
    return python


def prepared(folder: Path) -> tuple[Examples, list[list[int]]]:
    """The prepared rows, and which of them each optimizer step takes."""
    (train,) = (folder / "output").glob("*/prepared/train")
    examples = Examples(train)
    plan = schedule(len(examples), global_batch=GLOBAL_BATCH, epochs=1, max_steps=None, seed=SEED)
    return examples, [plan.batch(step) for step in range(plan.total_steps)]


def padding(folder: Path) -> float:
    """Share of the positions that our forward passes computed and that held no token of a row."""
    examples, batches = prepared(folder)
    computed = sum(
        pack([(examples.tokens(batch[at]), examples.trained(batch[at])) for at in row]).input_ids.numel()
        for batch in batches
        for row in spread(examples.lengths[batch], ranks=1, row_tokens=ROW_TOKENS)[0]
    )
    return 1 - int(examples.lengths.sum()) / computed


def write_tokens(folder: Path) -> None:
    """Leave the prepared rows for the peers, in the order in which they are trained."""
    examples, batches = prepared(folder)
    rows = [
        {
            "input_ids": examples.tokens(place).tolist(),
            "labels": np.where(examples.trained(place), examples.tokens(place), -100).tolist(),
        }
        for batch in batches
        for place in batch
    ]
    (folder / "tokens.json").write_text(json.dumps(rows), encoding="utf-8")


def _run(command: Sequence[str]) -> str:
    """What a command prints.

    Raises:
        SystemExit: it failed; with the last lines it wrote.
    """
    quiet = {"HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=os.environ | quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stderr + done.stdout).splitlines()[-30:])
        raise SystemExit(f"{' '.join(command[:3])} ended with {done.returncode}:\n{last}")
    return done.stdout


def summary(runs: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Ratios over the repeats: the median, and the least and the greatest."""
    line: dict[str, Any] = {}
    for name in runs:
        if name == "ours":
            continue
        pairs = list(zip(runs["ours"], runs[name], strict=True))
        ratios = [mine.tokens_per_second / theirs.tokens_per_second for mine, theirs in pairs]
        line[f"vs_{name}"] = round(statistics.median(ratios), 2)
        line[f"vs_{name}_spread"] = [round(min(ratios), 2), round(max(ratios), 2)]
        memory = [mine.memory_bytes / theirs.memory_bytes for mine, theirs in pairs]
        line[f"memory_vs_{name}"] = round(statistics.median(memory), 2)
    # The last quarter of the steps: one batch alone says little.
    if "trl_padded" in runs:
        mine, theirs = runs["ours"][0].losses, runs["trl_padded"][0].losses
        last = max(1, len(mine) // 4)
        line["final_loss_vs_trl"] = round(sum(mine[-last:]) / sum(theirs[-last:]) - 1, 5)
    for name, outcomes in runs.items():
        line[name] = {
            "tokens_per_second": round(statistics.median(one.tokens_per_second for one in outcomes), 1),
            "gigabytes": round(max(one.memory_bytes for one in outcomes) / 1e9, 2),
            "padding": round(outcomes[0].padding, 4),
        }
    return line


def main() -> None:
    """Run all contenders in turns and print their line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--data", type=Path, required=True, help="a JSON array of Alpaca rows")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--precision",
        choices=["BF16", "FP32"],
        default="BF16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "FP32",
        help="default: BF16 where the processor has it; elsewhere it would slow the peers several times",
    )
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS[1:], default=CONTENDERS[1:])
    arguments = parser.parse_args()
    runs: dict[str, list[Outcome]] = {name: [] for name in ("ours", *arguments.contenders)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = json.loads(arguments.data.read_text(encoding="utf-8"))[: arguments.rows]
        (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
        link_model(arguments.model, folder, arguments.precision)
        for contender in arguments.contenders:
            environment(contender.partition("_")[0])
        for _ in range(arguments.repeats):
            runs["ours"].append(ours(arguments, folder))
            write_tokens(folder)
            for contender in arguments.contenders:
                runs[contender].append(peer(contender, arguments, folder))
            for name, outcomes in runs.items():
                print(f"{name}: {outcomes[-1].tokens_per_second:.1f} tokens/s", file=sys.stderr)
    print(
        json.dumps(
            {
                "benchmark": "throughput",
                "precision": arguments.precision,
                "rows": len(rows),
                "repeats": arguments.repeats,
                **summary(runs),
            }
        )
    )


if __name__ == "__main__":
    main()
