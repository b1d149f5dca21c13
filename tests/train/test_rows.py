"""Which rows a run learns and which it is measured by, from the file to the forward pass."""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from finetune_trainer.config import (
    Adapter,
    Dataset,
    Layout,
    Model,
    Output,
    RunConfig,
    Source,
    Split,
    Training,
    Workers,
)
from finetune_trainer.data.arrays import Examples
from finetune_trainer.prepare.stage import main as prepare
from tests.fixtures.gangs import run_gang
from tests.fixtures.models import tiny_llama

PROGRAM = Path(__file__).parent / "programs" / "rows.py"
ROWS, EPOCHS = 50, 2
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Seen:
    """What a gang computed, over all ranks."""

    splits: dict[str, list[int]]
    """Source rows of each split, in order."""
    trained: list[list[int]]
    """Source rows of each optimizer step, sorted."""
    evaluated: list[list[int]]
    losses: list[tuple[str, int, float]]
    """Split, step and loss of each evaluation."""


def train(folder: Path, model: Path, ranks: int) -> Seen:
    folder.mkdir()
    rows = folder / "rows.jsonl"
    rows.write_text(
        "\n".join(
            json.dumps(
                {"instruction": f"Where is boat {row}?", "output": f"At pier {row * row}." * (row % 4 + 1)}
            )
            for row in range(ROWS)
        )
    )
    run = RunConfig(
        name="x",
        uid="u",
        model=Model(uri=f"file://{model}"),
        dataset=Dataset(sources=[Source(uri=f"file://{rows}")], split=Split(train=8, validation=1, test=1)),
        output=Output(uri=f"file://{folder / 'out'}"),
        training=Training(
            epochs=EPOCHS, global_batch_size=7, precision="FP32", learning_rate=1e-3, evaluation_steps=4
        ),
        adapter=Adapter(rank=4, alpha=8, dropout=0.0),
        workers=Workers(replicas=ranks, gpus_per_worker=0),
    )
    config = folder / "run.json"
    run.dump(config)
    assert prepare(config, folder / "work") == 0
    run_gang(PROGRAM, [config, folder / "work", folder], ranks=ranks)
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    prepared = folder / "out" / Layout("u").prepared
    events = [json.loads(line) for line in (folder / "events-0.jsonl").read_text().splitlines()]

    def over_all(kind: str) -> list[list[int]]:
        return [sorted(chain(*parts)) for parts in zip(*(rank[kind] for rank in seen), strict=True)]

    return Seen(
        splits={name: Examples(prepared / name).rows.tolist() for name in ("train", "validation", "test")},
        trained=over_all("trained"),
        evaluated=over_all("evaluated"),
        losses=[(e["split"], e["step"], e["loss"]) for e in events if e["event"] == "evaluation"],
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Seen:
    return train(tmp_path_factory.mktemp("rows") / "alone", model, 1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Seen:
    return train(tmp_path_factory.mktemp("rows") / "pair", model, 2)


def test_every_row_of_the_train_split_is_trained_once_an_epoch_and_no_other(alone: Seen) -> None:
    trained = [row for step in alone.trained for row in step]
    assert sorted(trained) == sorted(alone.splits["train"] * EPOCHS)
    held_out = {*alone.splits["validation"], *alone.splits["test"]}
    assert len(held_out) == 10
    assert held_out.isdisjoint(trained)
    assert held_out | {*trained} == {*range(ROWS)}


def test_evaluations_are_of_the_rows_held_out(alone: Seen) -> None:
    splits = [name for name, _, _ in alone.losses]
    assert [*splits[:2], *splits[-2:]] == ["test", "validation", "validation", "test"]
    assert alone.evaluated == [sorted(alone.splits[name]) for name in splits]


def test_the_number_of_ranks_changes_neither_splits_nor_batches(alone: Seen, pair: Seen) -> None:
    assert pair.splits == alone.splits
    assert pair.trained == alone.trained
    assert pair.evaluated == alone.evaluated


def test_the_number_of_ranks_changes_no_evaluation(alone: Seen, pair: Seen) -> None:
    for ours, theirs in zip(pair.losses, alone.losses, strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] == pytest.approx(theirs[2], abs=1e-5)
