"""Checkpoints through the output's storage: written whole, sealed by a manifest, trusted only then."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from finetune_trainer.config import Checkpoint, ExitReason, Layout, RunConfig, RunError, Warned
from finetune_trainer.storage import Output
from finetune_trainer.train.collate import MicroBatch
from finetune_trainer.train.emit import Emitter
from finetune_trainer.train.engine import Engine, Scale
from finetune_trainer.train.watchdog import Watch
from finetune_trainer.train.world import World

_STATE, _TENSORS = "state.json", "optimizer.safetensors"
_DOWNLOADS = "resume"


@dataclass
class Progress:
    """Where a run stands, besides weights and moments.

    Attributes:
        step: optimizer steps taken.
        tokens: tokens seen by all ranks, trained or not.
        window_loss: sum of losses since the last logged line, in nats.
        window_tokens: trained tokens since the last logged line.
        seconds: time spent in optimizer steps over all attempts.
        test_loss_before: loss of the test split before the first step; None without a test split.
        log: the lines of train-log.jsonl so far.
        watch: what the watchdog remembers.
    """

    step: int = 0
    tokens: int = 0
    window_loss: float = 0.0
    window_tokens: int = 0
    seconds: float = 0.0
    test_loss_before: float | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class _State:
    """`state.json` of a checkpoint."""

    progress: Progress
    prepared: str
    scale: Scale | None

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> _State:
        """Read `state.json`.

        Raises:
            RunError: it was written by a version with other fields (`StorageUnavailable`).
        """
        try:
            raw = json.loads(data)
            # Checkpoints made before there was a watchdog have nothing of it.
            watch = Watch(**raw["progress"].pop("watch", {}))
            progress = Progress(**raw["progress"], watch=watch)
            scale = raw["scale"]
            return cls(progress, raw["prepared"], None if scale is None else Scale(**scale))
        except (KeyError, TypeError, ValueError):
            raise RunError(
                ExitReason.STORAGE_UNAVAILABLE, "its state was written by another version of this trainer"
            ) from None


class Checkpoints:
    """The checkpoints of one run in its output.

    The number of ranks and the ZeRO stage may differ between the run that wrote a checkpoint and
    the one that reads it; the prepared data may not.

    Args:
        run: its uid names the folder, `checkpoint.keep` how many stay.
        output: where they go.
        prepared: digest of the prepared data's manifest.
        work: scratch folder of this worker.
    """

    def __init__(
        self, run: RunConfig, output: Output, prepared: str, work: Path, world: World, emit: Emitter
    ) -> None:
        self._layout = Layout(run.uid)
        self._keep = run.checkpoint.keep
        self._output = output
        self._prepared = prepared
        self._work = work
        self._world = world
        self._emit = emit

    def save(self, engine: Engine, progress: Progress) -> None:
        """Write a checkpoint and drop those beyond `keep`. A collective; returns once it is sealed.

        Raises:
            RunError: storage refused or was not to be had.
        """
        begun = time.monotonic()
        snapshot = engine.snapshot()

        def write() -> None:
            folder = self._work / "checkpoint"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                folder.mkdir(parents=True)
                save_file(snapshot, folder / _TENSORS)
                state = _State(progress, self._prepared, engine.scale)
                (folder / _STATE).write_bytes(state.encode())
            except (OSError, SafetensorError) as error:
                # safetensors words a full disk as an error of its own.
                raise RunError(
                    ExitReason.STORAGE_UNAVAILABLE,
                    f"cannot write the checkpoint to {folder}: {getattr(error, 'strerror', error)}",
                    "free some space there",
                ) from error
            prefix = self._layout.checkpoint(progress.step)
            if self._output.manifest(prefix) is not None:
                # Left by an earlier start that this one could not continue from.
                self._output.remove(prefix)
            manifest = self._output.publish(folder, prefix)
            shutil.rmtree(folder)
            # Later ones are of an earlier start that this one could not continue from. Were they counted,
            # the one just written would go first; they go when this start has come as far.
            own = prefix.rpartition("/")[2]
            names = [name for name in self._output.published(self._layout.checkpoints) if name <= own]
            for name in names[: -self._keep]:
                self._output.remove(f"{self._layout.checkpoints}/{name}")
            seconds = round(time.monotonic() - begun, 3)
            self._emit(Checkpoint(step=progress.step, bytes=manifest.size, seconds=seconds))

        # All ranks wait for the leader's upload, which is no hang: storage bounds it itself.
        with self._emit.beating():
            self._world.together(write, here=self._world.leader)

    def resume(self, engine: Engine, idle: MicroBatch) -> Progress:
        """Continue from the newest checkpoint that is whole and of this data, else from step 0. A collective.

        Raises:
            RunError: storage refused or was not to be had.
        """
        name = self._world.from_leader(self._world.together(self._newest, here=self._world.leader))
        if name is None:
            return Progress()
        first = self._world.local_rank == 0
        self._world.together(lambda: self._fetch(name), here=first)
        folder = self._fetch(name)
        state = _State.decode((folder / _STATE).read_bytes())
        engine.restore(load_file(folder / _TENSORS), count=state.progress.step, idle=idle)
        if state.scale is not None:
            engine.scale = state.scale
        self._world.barrier()
        if first:
            shutil.rmtree(self._work / _DOWNLOADS, ignore_errors=True)
        if self._world.leader:
            self._emit(Checkpoint(step=state.progress.step, resumed=True))
        return state.progress

    def _newest(self) -> str | None:
        """Name of the newest checkpoint whose files are as its manifest says and whose data is this run's."""
        for name in reversed(self._output.published(self._layout.checkpoints)):
            try:
                # Its data is told by the small file; only what can be continued is fetched whole.
                state = _State.decode((self._fetch(name, [_STATE]) / _STATE).read_bytes())
                if state.prepared == self._prepared:
                    self._fetch(name)
                    return name
            except RunError as error:
                if error.reason is not ExitReason.STORAGE_UNAVAILABLE:
                    raise
                # Damage leaves the manifest readable. An outage does not: it must not cost the steps so far.
                self._output.manifest(f"{self._layout.checkpoints}/{name}")
                self._emit(
                    Warned(message=f"checkpoint {name} cannot be used: {error.message}", hint=error.hint)
                )
                continue
            self._emit(
                Warned(
                    message=f"checkpoint {name} was trained on other data and is not continued",
                    hint="the data has changed since: an older one is taken, else training starts anew",
                )
            )
        return None

    def _fetch(self, name: str, files: list[str] | None = None) -> Path:
        """The checkpoint's files (None: all), checked; those downloaded already are kept."""
        prefix = f"{self._layout.checkpoints}/{name}"
        return self._output.fetch(prefix, self._work / _DOWNLOADS / name, files)
