"""The environment of a rank: what torchrun's static rendezvous would set, and our defaults."""

from __future__ import annotations

from collections.abc import Mapping

from finetune_trainer.config import RunConfig
from finetune_trainer.worker.messages import Start

_GPU_DEFAULTS = {
    # AMD's advice for training on Instinct; a job may override each of them.
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "RCCL_MSCCL_ENABLE": "0",
    "HIP_FORCE_DEV_KERNARG": "1",
    "GPU_MAX_HW_QUEUES": "2",
}


def stage_environment(
    base: Mapping[str, str], config: RunConfig, *, processes: int, cores: int
) -> dict[str, str]:
    """The environment of a process that computes; what a person set in `base` is kept.

    Args:
        base: the agent's own environment.
        config: the run.
        processes: how many such processes share the worker.
        cores: processor cores of the worker.
    """
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        "PYTHONFAULTHANDLER": "1",  # a hung rank is aborted, and its stack then stands in its log
        "PYTHONUNBUFFERED": "1",
    }
    if config.workers.gpus_per_worker == 0:
        defaults["DS_ACCELERATOR"] = "cpu"
    else:
        defaults |= _GPU_DEFAULTS
    return defaults | dict(base)


def rank_environment(
    base: Mapping[str, str], config: RunConfig, *, worker: int, local_rank: int, start: Start, cores: int
) -> dict[str, str]:
    """The environment of one rank: that of a stage, and the rendezvous.

    Args:
        base: the agent's own environment.
        config: the run.
        worker: index of the worker.
        local_rank: index of the rank in its worker.
        start: where rank 0 serves torch's store.
        cores: processor cores of the worker.
    """
    local_size = config.workers.ranks_per_worker
    world_size = config.workers.world_size
    rank = worker * local_size + local_rank
    environment = stage_environment(base, config, processes=local_size, cores=cores)
    if start.master_address.startswith("127."):
        # Otherwise the collectives take the interface that the host's name points to.
        environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} | environment
    rendezvous = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": worker,
        "GROUP_WORLD_SIZE": config.workers.replicas,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": start.master_address,
        "MASTER_PORT": start.master_port,
        "TORCHELASTIC_RUN_ID": f"{config.uid}-{config.attempt}",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return environment | {name: str(value) for name, value in rendezvous.items()}
