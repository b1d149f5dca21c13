"""One rank as an agent starts it, that writes down which rows it computes.

    python rows.py RUN.json WORK OUT      (environment as torchrun sets it)

OUT/<rank>.json: {"trained": source rows of each optimizer step, "evaluated": those of each evaluation}.
"""

import json
import os
import sys
from pathlib import Path

from finetune_trainer import libraries
from finetune_trainer.config import RunConfig
from finetune_trainer.train.emit import Emitter
from finetune_trainer.train.signals import StopRequest

libraries.settle()

from finetune_trainer.train.collate import MicroBatch  # noqa: E402  (torch only now, as in a rank)
from finetune_trainer.train.rank import train  # noqa: E402
from finetune_trainer.train.step import Split, Stepper  # noqa: E402
from finetune_trainer.train.world import join  # noqa: E402

run, work, out = RunConfig.load(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
rank = int(os.environ["RANK"])
seen: dict[str, list[list[int]]] = {"trained": [], "evaluated": []}
_accumulate, _evaluate, _collate = Stepper.accumulate, Stepper.evaluate, Stepper._collate
under_way: list[int] = []


def accumulate(self: Stepper, split: Split, batch: list[int]) -> float:
    seen["trained"].append([])
    under_way[:] = batch
    return _accumulate(self, split, batch)


def evaluate(self: Stepper, split: Split) -> tuple[float, int]:
    seen["evaluated"].append([])
    under_way.clear()
    return _evaluate(self, split)


def collate(self: Stepper, split: Split, batch: list[int], row: list[int]) -> MicroBatch:
    seen["trained" if under_way else "evaluated"][-1] += [int(split.rows[batch[at]]) for at in row]
    return _collate(self, split, batch, row)


Stepper.accumulate, Stepper.evaluate, Stepper._collate = accumulate, evaluate, collate  # type: ignore[method-assign]
train(
    run,
    work,
    join(gpus=False),
    Emitter((out / f"events-{rank}.jsonl").open("w"), work / "beat"),
    StopRequest(),
)
(out / f"{rank}.json").write_text(json.dumps(seen))
