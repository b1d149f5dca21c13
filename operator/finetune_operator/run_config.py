"""From a FineTuneJob to what the stages of a run are told: every default filled in, fractions as numbers."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath

from finetune_operator.api.adapter import Adapter, Quantization
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.training import DEFAULT_EPOCHS, Training
from finetune_operator.api.uris import absolute
from finetune_trainer import config

UID_LENGTH = 12

# A run is continued when these change, because they don't change what is learned: how the work is spread
# and cut into passes, and how often something is written down.
_SPREAD = {"micro_batch_size", "gradient_checkpointing", "log_steps", "evaluation_steps"}


def build(job: FineTuneJob, *, uid: str, attempt: int = 1) -> config.RunConfig:
    """Resolve a job into the contract of its stages.

    Args:
        job: a valid job; for a run on one machine, after `with_absolute_files`.
        uid: names the run's folder in the output: the resource's uid, or `local_uid`.
        attempt: from 1.

    Returns:
        A configuration with every default filled in.
    """
    spec = job.spec
    model, dataset, workers, deepspeed = spec.model, spec.dataset, spec.workers, spec.deepspeed
    return config.RunConfig(
        name=job.metadata.name,
        namespace=job.metadata.namespace or "default",
        uid=uid,
        attempt=attempt,
        model=config.Model(
            uri=model.uri,
            revision=model.revision,
            credentials=model.credentials_secret,
            attention=model.attention,
            trust_remote_code=model.trust_remote_code,
        ),
        dataset=config.Dataset(
            sources=[
                config.Source(uri=source.uri, format=source.format, credentials=source.credentials_secret)
                for source in dataset.sources
            ],
            template=dataset.template,
            system_prompt=dataset.system_prompt,
            max_length=dataset.max_length,
            overlong=dataset.overlong,
            loss=dataset.loss,
            packing=dataset.packing,
            split=config.Split(**dict(dataset.split)),
        ),
        adapter=_adapter(spec.adapter),
        training=_training(spec.training),
        checkpoint=config.CheckpointPolicy(steps=spec.checkpoint.steps, keep=spec.checkpoint.keep),
        workers=config.Workers(replicas=workers.replicas, gpus_per_worker=workers.gpus_per_worker),
        deepspeed=config.DeepSpeed(
            stage=deepspeed.stage,
            offload_optimizer=deepspeed.offload_optimizer,
            offload_parameters=deepspeed.offload_parameters,
            config=deepspeed.config,
        ),
        output=config.Output(
            uri=spec.output.uri, credentials=spec.output.credentials_secret, merge=spec.output.merge
        ),
        retry=config.Retry(
            hang_seconds=spec.retry.hang_seconds, rendezvous_seconds=spec.retry.rendezvous_seconds
        ),
    )


def _adapter(adapter: Adapter) -> config.Adapter:
    quantization = None
    if adapter.method == "QLoRA":
        wanted = adapter.quantization or Quantization()
        quantization = config.Quantization(type=wanted.type, double_quantization=wanted.double_quantization)
    return config.Adapter(
        rank=adapter.rank,
        alpha=adapter.alpha,
        dropout=float(adapter.dropout),
        target_modules=adapter.target_modules,
        rank_stabilized=adapter.rank_stabilized,
        quantization=quantization,
    )


def _training(training: Training) -> config.Training:
    epochs = training.epochs or (None if training.max_steps else DEFAULT_EPOCHS)
    return config.Training(
        epochs=float(epochs) if epochs else None,
        max_steps=training.max_steps,
        learning_rate=float(training.learning_rate),
        scheduler=training.scheduler,
        warmup_ratio=float(training.warmup_ratio),
        weight_decay=float(training.weight_decay),
        max_gradient_norm=float(training.max_gradient_norm),
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        precision=training.precision,
        gradient_checkpointing=training.gradient_checkpointing,
        seed=training.seed,
        log_steps=training.log_steps,
        evaluation_steps=training.evaluation_steps,
    )


def with_absolute_files(job: FineTuneJob, *, folder: PurePath, home: PurePath) -> FineTuneJob:
    """Make the `file://` addresses of a local job independent of where its stages run.

    Args:
        job: a valid local job.
        folder: absolute path that `file://./` starts from: where the person who runs the job is.
        home: absolute path that `file://~/` starts from.
    """

    def resolve(uri: str) -> str:
        return absolute(uri, folder=folder, home=home)

    spec = job.spec
    sources = [source.model_copy(update={"uri": resolve(source.uri)}) for source in spec.dataset.sources]
    resolved = {
        "model": spec.model.model_copy(update={"uri": resolve(spec.model.uri)}),
        "dataset": spec.dataset.model_copy(update={"sources": sources}),
        "output": spec.output.model_copy(update={"uri": resolve(spec.output.uri)}),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=resolved)})


def local_uid(job: FineTuneJob) -> str:
    """Name a local run after what it learns, so that the same job run again continues where it stopped.

    Counts: name, model, dataset, adapter, optimisation and output, by value (`"1e-4"` is `"0.0001"`).
    Does not count: credentials, the number of workers, DeepSpeed, checkpoints, logging, limits in time.

    Args:
        job: a valid job, after `with_absolute_files`: the same text in another folder is another run.

    Returns:
        12 hexadecimal digits.
    """
    run = build(job, uid="")
    learned = {
        "name": run.name,
        "model": run.model.model_dump(exclude={"credentials"}),
        "dataset": run.dataset.model_dump(exclude={"sources": {"__all__": {"credentials"}}}),
        "adapter": run.adapter.model_dump(),
        "training": run.training.model_dump(exclude=_SPREAD),
        "output": run.output.model_dump(exclude={"credentials"}),
    }
    text = json.dumps(learned, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:UID_LENGTH]
