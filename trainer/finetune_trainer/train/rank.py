"""What one rank does, from joining the gang to leaving the adapter for publication."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

from safetensors.torch import save_file

from finetune_trainer.config import ExitReason, Layout, RunConfig, RunError, Stage
from finetune_trainer.data.arrays import Examples
from finetune_trainer.data.report import Report
from finetune_trainer.storage import Output, cache_folder, open_output, open_source
from finetune_trainer.train import zero
from finetune_trainer.train.batches import schedule
from finetune_trainer.train.checkpoint import Checkpoints, Progress
from finetune_trainer.train.diagnosis import Known
from finetune_trainer.train.emit import Emitter
from finetune_trainer.train.engine import Engine
from finetune_trainer.train.fused import fuse
from finetune_trainer.train.load import DTYPES, load_base, padding_token, require_precision
from finetune_trainer.train.loop import Loop, Splits
from finetune_trainer.train.lora import wrap
from finetune_trainer.train.objective import Objective
from finetune_trainer.train.probes import settle_packing
from finetune_trainer.train.signals import StopRequest
from finetune_trainer.train.step import Shape, Stepper
from finetune_trainer.train.world import World


def train(run: RunConfig, work: Path, world: World, emit: Emitter, stop: StopRequest) -> Progress:
    """Train one adapter and leave it in `work/adapter`, with `work/training.json` beside it (rank 0).

    Raises:
        RunError: whatever kept it from that, with its reason.
    """
    configuration = zero.configuration(run)
    require_precision(run)
    output = open_output(run.output.uri, credentials=run.output.credentials)

    _say(emit, world, "load", f"{run.model.uri} in {run.training.precision}")
    folder = _fetch_model(run, world)
    prepared, digest = _fetch_prepared(run, output, work, world)
    splits = Splits(*(Examples(prepared / name) for name in ("train", "validation", "test")))

    _leave_if_asked(stop, world)
    base = load_base(run, folder, world, configuration)
    adapted = wrap(base.model, run.adapter, seed=run.training.seed)
    if zero.stage_of(run) < 3:
        fuse(adapted)
    objective = Objective(adapted, base.model, split=zero.stage_of(run) == 3)
    engine = Engine(objective, configuration, run.training.weight_decay)
    # Only now are the weights on the device, or gathered as they are needed: the model can be asked.
    base = settle_packing(base, run, splits.train, emit, world)
    shape = Shape.of(run, packs=base.packs, padding=padding_token(base.model))
    sample = shape.collate([(splits.train.tokens(0), splits.train.trained(0))]).to(world.device)
    objective.probe(sample)
    # Ranks that disagree would call different collectives from the first step on.
    objective.own_head = world.agree(objective.own_head)

    checkpoints = Checkpoints(run, output, digest, work, world, emit)
    plan = schedule(
        len(splits.train),
        global_batch=run.training.global_batch_size,
        epochs=run.training.epochs,
        max_steps=run.training.max_steps,
        seed=run.training.seed,
    )
    loop = Loop(
        run=run,
        world=world,
        engine=engine,
        stepper=Stepper(engine, shape, world, emit.beat),
        splits=splits,
        schedule=plan,
        known=Known.of(
            run,
            Report.model_validate_json((prepared / "report.json").read_bytes()),
            total_steps=plan.total_steps,
            vocabulary=base.model.config.get_text_config().vocab_size,
        ),
        checkpoints=checkpoints,
        stop=stop,
        emit=emit,
    )
    _leave_if_asked(stop, world)
    progress = checkpoints.resume(engine, sample)
    if progress.step == 0:
        progress.test_loss_before = loop.evaluate(progress, "test")
    _say(emit, world, "train", f"{loop.schedule.total_steps} steps, {len(splits.train)} examples")
    loop.train(progress)

    validation = loop.evaluate(progress, "validation")
    test = loop.evaluate(progress, "test")
    _say(emit, world, "save", "the adapter, whole, from every rank's part")
    _leave(run, work, world, engine, progress, loop, {"validation_loss": validation, "test_loss_after": test})
    return progress


def _say(emit: Emitter, world: World, stage: str, message: str) -> None:
    if world.leader:
        emit(Stage(name=stage, message=message))


def _leave_if_asked(stop: StopRequest, world: World) -> None:
    """End on all ranks alike where any was asked to stop while there is nothing to save yet."""
    if world.largest(float(stop.requested)):
        raise RunError(ExitReason.PREEMPTED, "stopped before training began")


def _fetch_model(run: RunConfig, world: World) -> Path:
    """The model's folder; one rank of each worker downloads, the others find it there."""

    def fetch() -> Path:
        source = open_source(
            run.model.uri, purpose="model", credentials=run.model.credentials, revision=run.model.revision
        )
        return source.fetch(cache_folder())

    world.together(fetch, here=world.local_rank == 0)
    folder = world.together(fetch)
    assert folder is not None
    return folder


def _fetch_prepared(run: RunConfig, output: Output, work: Path, world: World) -> tuple[Path, str]:
    """The prepared data's folder and its manifest's digest."""
    prefix = Layout(run.uid).prepared

    def fetch() -> tuple[Path, str]:
        manifest = output.manifest(prefix)
        if manifest is None:
            raise RunError(
                ExitReason.INVALID_DATASET,
                f"{output.uri(prefix)} holds no prepared data",
                "run the prepare stage first",
            )
        return output.fetch(prefix, work / "prepared"), manifest.sha256

    world.together(fetch, here=world.local_rank == 0)
    fetched = world.together(fetch)
    assert fetched is not None
    return fetched


def _leave(
    run: RunConfig,
    work: Path,
    world: World,
    engine: Engine,
    progress: Progress,
    loop: Loop,
    losses: dict[str, float | None],
) -> None:
    """Write the adapter and the facts of its training for the publish stage. A collective."""
    from peft import LoraConfig, get_peft_model_state_dict

    weights = engine.weights()
    if not world.leader:
        return
    adapted = engine.module.model
    dtype = DTYPES[run.training.precision]
    tensors = get_peft_model_state_dict(
        adapted, state_dict={name: value.to(dtype) for name, value in weights.items()}
    )
    folder = work / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "adapter_model.safetensors"
    )
    config = adapted.peft_config["default"]
    if isinstance(config, LoraConfig) and isinstance(config.target_modules, set):
        # A set's order differs from process to process; equal runs leave equal files.
        config.target_modules = sorted(config.target_modules)
    config.save_pretrained(str(folder))
    last = next((line for line in reversed(progress.log) if line["event"] == "step"), None)
    facts = {
        "step": progress.step,
        "total_steps": loop.schedule.total_steps,
        "test_loss_before": progress.test_loss_before,
        "train_loss": None if last is None else last["loss"],
        "peak_memory_bytes": 0 if last is None else last["memory_bytes"],
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        "world_size": world.size,
        "zero_stage": zero.stage_of(run),
        "versions": {name: version(name) for name in _VERSIONS},
        "log": progress.log,
        **losses,
    }
    (work / "training.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")


_VERSIONS = ("torch", "transformers", "peft", "deepspeed", "bitsandbytes", "finetune-operator")
