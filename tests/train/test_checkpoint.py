"""Which checkpoints stay, which one is continued, and a disk that is full."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from finetune_trainer.config import (
    Checkpoint,
    CheckpointPolicy,
    Dataset,
    Event,
    ExitReason,
    Layout,
    Model,
    RunConfig,
    RunError,
    Source,
    Warned,
)
from finetune_trainer.config import Output as OutputConfig
from finetune_trainer.storage import open_output
from finetune_trainer.storage.folders import FolderOutput
from finetune_trainer.train.checkpoint import Checkpoints, Progress, _State
from finetune_trainer.train.collate import MicroBatch, pack
from finetune_trainer.train.emit import Emitter
from finetune_trainer.train.engine import Engine, Snapshot
from finetune_trainer.train.watchdog import Watch
from finetune_trainer.train.world import World

Opener = Callable[[str], Checkpoints]


class Alone(World):
    """One rank, without a process group."""

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def from_leader(self, value: Any) -> Any:
        return value

    def barrier(self) -> None:
        pass


class OneTensor(Engine):
    """Holds one tensor in place of an adapter."""

    scale = None  # type: ignore[override]  # as of a run that scales no loss

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self.restored_count: int | None = None

    def snapshot(self) -> Snapshot:
        return {"master/x": torch.arange(float(self._size))}

    def restore(self, snapshot: Snapshot, *, count: int, idle: MicroBatch) -> None:
        self.restored_count = count


IDLE = pack([(np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.bool_))])


class Said(Emitter):
    """Keeps events in place of writing them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def beat(self) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    return RunConfig(
        name="x",
        uid="u",
        model=Model(uri="file:///x"),
        dataset=Dataset(sources=[Source(uri="file:///x")]),
        output=OutputConfig(uri=f"file://{tmp_path}/out"),
        checkpoint=CheckpointPolicy(steps=1, keep=2),
    )


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def open_checkpoints(run: RunConfig, tmp_path: Path, said: Said) -> Opener:
    def open_as(prepared: str) -> Checkpoints:
        world = Alone(rank=0, size=1, local_rank=0, device=torch.device("cpu"))
        output = open_output(run.output.uri)
        return Checkpoints(run, output, prepared, tmp_path / "work", world, said)

    return open_as


def there(run: RunConfig) -> list[int]:
    folder = Path(run.output.uri.removeprefix("file://")) / "u/checkpoints"
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(OneTensor(), Progress(step=step))


def test_the_newest_are_kept(run: RunConfig, open_checkpoints: Opener) -> None:
    save(open_checkpoints("data"), 1, 2, 3, 4)
    assert there(run) == [3, 4]


def test_the_newest_of_this_data_is_continued(open_checkpoints: Opener, said: Said) -> None:
    save(open_checkpoints("data"), 1, 2)
    engine = OneTensor()
    assert open_checkpoints("data").resume(engine, IDLE).step == 2
    assert engine.restored_count == 2
    assert said.events[-1] == Checkpoint(step=2, resumed=True)


def test_those_of_other_data_do_not_crowd_out_new_ones(run: RunConfig, open_checkpoints: Opener) -> None:
    save(open_checkpoints("old data"), 10, 20)
    again = open_checkpoints("new data")
    assert again.resume(OneTensor(), IDLE).step == 0
    save(again, 5)
    assert there(run) == [5, 10, 20]
    assert open_checkpoints("new data").resume(OneTensor(), IDLE).step == 5
    save(again, 10, 15)
    assert there(run) == [10, 15, 20]
    save(again, 20)
    assert there(run) == [15, 20]
    assert open_checkpoints("new data").resume(OneTensor(), IDLE).step == 20


def test_a_damaged_one_is_named_and_an_older_one_continued(
    run: RunConfig, open_checkpoints: Opener, said: Said
) -> None:
    save(open_checkpoints("data"), 1, 2)
    newest = Path(run.output.uri.removeprefix("file://")) / "u/checkpoints/step-00000002"
    (newest / "optimizer.safetensors").write_bytes(b"cut short")
    assert open_checkpoints("data").resume(OneTensor(), IDLE).step == 1
    (warned,) = (event for event in said.events if isinstance(event, Warned))
    assert "step-00000002 cannot be used" in warned.message


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["from-python", "from-safetensors"],
)
def test_a_full_disk_is_said_in_one_line(
    error: Exception, open_checkpoints: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("finetune_trainer.train.checkpoint.save_file", fail)
    with pytest.raises(RunError) as caught:
        open_checkpoints("data").save(OneTensor(), Progress(step=1))
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
    assert str(tmp_path / "work") in caught.value.message
    assert "No space left on device" in caught.value.message
    assert "space" in caught.value.hint


def test_what_the_watchdog_remembers_is_continued(open_checkpoints: Opener) -> None:
    watch = Watch(steps=3, losses=[3.0, 2.5, 2.0], norms=[1.0, 2.0, 1.5], told=["spike"])
    open_checkpoints("data").save(OneTensor(), Progress(step=3, watch=watch))
    assert open_checkpoints("data").resume(OneTensor(), IDLE).watch == watch


def test_a_state_from_before_there_was_a_watchdog_is_continued() -> None:
    state = json.loads(_State(Progress(step=3), "data", None).encode())
    del state["progress"]["watch"]
    assert _State.decode(json.dumps(state).encode()) == _State(Progress(step=3), "data", None)


def test_an_outage_is_no_damage(open_checkpoints: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    open_checkpoints("data").save(OneTensor(), Progress(step=1))
    away = RunError(ExitReason.STORAGE_UNAVAILABLE, "no answer")

    def fail(*_: object, **__: object) -> None:
        raise away

    checkpoints = open_checkpoints("data")
    monkeypatch.setattr(FolderOutput, "fetch", fail)
    monkeypatch.setattr(FolderOutput, "manifest", fail)
    with pytest.raises(RunError) as caught:
        checkpoints.resume(OneTensor(), IDLE)
    assert caught.value is away


def test_a_state_that_cannot_be_read_is_named_and_an_older_one_continued(
    run: RunConfig, open_checkpoints: Opener, said: Said
) -> None:
    for step in (1, 2):
        open_checkpoints("data").save(OneTensor(), Progress(step=step))
    output = open_output(run.output.uri)
    prefix = Layout(run.uid).checkpoint(2)
    folder = output.fetch(prefix, Path())
    state = json.loads((folder / "state.json").read_text())
    state["progress"]["field_of_another_version"] = 1
    other = folder.parent / "other"
    other.mkdir()
    (other / "state.json").write_text(json.dumps(state))
    output.remove(prefix)
    output.publish(other, prefix)
    engine = OneTensor()
    assert open_checkpoints("data").resume(engine, IDLE).step == 1
    (warned,) = (event for event in said.events if isinstance(event, Warned))
    assert "another version" in warned.message
