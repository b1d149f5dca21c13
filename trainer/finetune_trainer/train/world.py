"""The gang as one rank sees it: who I am, and the few things all ranks agree on."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from finetune_trainer.config import RunError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process's place among the ranks; collectives block until every rank calls them."""

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def leader(self) -> bool:
        """Whether this rank speaks for all (global rank 0)."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over all ranks, in double precision."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def largest(self, value: float) -> float:
        """The largest of all ranks' values."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def agree(self, opinion: bool) -> bool:
        """Whether every rank says yes."""
        return not self.largest(float(not opinion))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank (small picklable objects)."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def together(self, action: Callable[[], T], *, here: bool = True) -> T | None:
        """Run `action` on the ranks with `here`, and fail on all ranks where it fails on one.

        Without this a rank that cannot read a file leaves its peers waiting in a collective.

        Returns:
            The action's value on the ranks that ran it, else None.

        Raises:
            RunError: the first one, in rank order, that any rank met.
        """
        value: T | None = None
        failure: RunError | None = None
        if here:
            try:
                value = action()
            except RunError as error:
                failure = error
        failures = self.gather(failure and (failure.reason, failure.message, failure.hint))
        if failure is not None:
            raise failure
        for described in failures:
            if described is not None:
                raise RunError(*described)
        return value

    def from_leader(self, value: Any) -> Any:
        """The leader's value, on every rank (a small picklable object)."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()


_PATIENCE = timedelta(hours=2)
"""How long a collective may block: as long as peers may wait for one rank's download of the model.

Hangs in training are found by the agents within `retry.hangSeconds`; this is the net below them.
"""


def join(*, gpus: bool) -> World:
    """Join the process group described by torchrun's environment variables.

    Args:
        gpus: one GPU per rank over NCCL/RCCL, else the CPU over gloo.

    Raises:
        KeyError: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR or MASTER_PORT is not set.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    if not gpus:
        os.environ["DS_ACCELERATOR"] = "cpu"
    if _is_loopback(os.environ["MASTER_ADDR"]):
        # Otherwise gloo listens on whatever address the host's name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.WARNING)
    # DeepSpeed would compile its shared-memory collectives at the first start: minutes, a C++
    # compiler on every machine, and an abort when two ranks compile at once. gloo has no need of them.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    deepspeed.init_distributed(
        dist_backend="nccl" if gpus else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=_PATIENCE,
    )
    return World(rank, size, local_rank, device)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
