"""The DeepSpeed configuration that a job stands for, and the keys an expert may add to it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from finetune_trainer.config import ExitReason, RunConfig, RunError
from finetune_trainer.config.overlay import contradictions


def stage_of(run: RunConfig) -> int:
    """The ZeRO stage: the job's, or for `Auto` the least that does what the job asks for.

    2 splits gradients and optimizer state, which costs nothing beyond the all-reduce that data
    parallelism needs anyway; 3 only where the parameters have to leave the device.
    """
    if run.deepspeed.stage != "Auto":
        return run.deepspeed.stage
    return 3 if run.deepspeed.offload_parameters == "CPU" else 2


def configuration(run: RunConfig) -> dict[str, Any]:
    """Build DeepSpeed's configuration.

    Micro batches and accumulation are 1 here: the loop itself says which micro batch closes a
    step (its number varies with the rows' lengths), and scales the loss by trained tokens.

    Raises:
        RunError: the overlay sets a key that the job decides (`InvalidConfiguration`).
    """
    stage = stage_of(run)
    zero: dict[str, Any] = {"stage": stage}
    if run.deepspeed.offload_optimizer == "CPU":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": run.workers.gpus_per_worker > 0}
    if run.deepspeed.offload_parameters == "CPU":
        zero["offload_param"] = {"device": "cpu", "pin_memory": run.workers.gpus_per_worker > 0}
    if stage == 3:
        # Adapters are small: kept whole on every rank they cost little and are not gathered at each use.
        zero["stage3_param_persistence_threshold"] = 100_000
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": run.training.max_gradient_norm,
        "zero_optimization": zero,
        # The optimizer is torch's AdamW on every device, so nothing is compiled when a run starts.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if run.training.precision == "BF16":
        config["bf16"] = {"enabled": True}
        if stage > 0:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    elif run.training.precision == "FP16":
        config["fp16"] = {"enabled": True}
    return overlay(config, run.deepspeed.config)


def overlay(config: dict[str, Any], expert: dict[str, Any]) -> dict[str, Any]:
    """Lay expert keys over `config`, nested objects merged; `config` is left as it is.

    Raises:
        RunError: a key is one that the job decides.
    """
    for path, field in contradictions(expert):
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"deepspeed.config sets {'.'.join(path)}, which the job decides",
            f"remove it and set {field} instead",
        )
    merged = deepcopy(config)
    _merge(merged, expert)
    return merged


def _merge(into: dict[str, Any], expert: dict[str, Any]) -> None:
    for key, value in expert.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = deepcopy(value)
