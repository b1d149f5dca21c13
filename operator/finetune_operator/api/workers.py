# ruff: noqa: RUF012 - pydantic copies a mutable default for each instance
"""spec.workers: the gang of pods that trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api import patterns
from finetune_operator.api.base import INT32_MAX, Part, Quantity

LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=patterns.QUALIFIED_NAME)]
LabelValue = Annotated[str, Field(max_length=63, pattern=patterns.LABEL_VALUE)]
GroupId = Annotated[int, Field(ge=0, le=INT32_MAX)]
ResourceAmounts = Annotated[dict[LabelKey, Quantity], Field(max_length=32)]

# What a site may have to tell the collectives and the runtime. Never here: anything that loads code,
# picks devices, overrides the architecture, moves the rendezvous or carries a secret.
EnvironmentName = Literal[
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_DISABLE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_DMABUF_ENABLE",
    "TORCH_NCCL_HIGH_PRIORITY",
    "RCCL_MSCCL_ENABLE",
    "HIP_FORCE_DEV_KERNARG",
    "HSA_NO_SCRATCH_RECLAIM",
    "GPU_MAX_HW_QUEUES",
    "OMP_NUM_THREADS",
]


class Variable(Part):
    """One environment variable of the training containers, from the list of allowed names."""

    name: EnvironmentName
    """One of the allowed names."""
    value: Annotated[str, Field(max_length=4096)]
    """The text itself."""


class Toleration(Part):
    """A pod's toleration, by the rules that pods obey."""

    key: Annotated[str, Field(max_length=317, pattern=rf"^$|{patterns.QUALIFIED_NAME}")] = ""
    """The taint's key; empty, with operator Exists, for every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Whether the taint's value counts."""
    value: LabelValue = ""
    """The taint's value; with operator Equal only."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty for each of them."""
    toleration_seconds: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """With effect NoExecute only; seconds until eviction, for ever if left out."""


class Resources(Part):
    """What a training container asks for beside its GPUs."""

    requests: ResourceAmounts = {}
    """What a node must have free, by resource."""
    limits: ResourceAmounts = {}
    """What a container may use at most, by resource."""


class Workers(Part):
    """The gang: `replicas` pods of the same shape, all or none of them."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Pods."""
    gpus_per_worker: Annotated[int, Field(ge=0, le=128)] = 1
    """GPUs of each pod, one rank each; 0 trains on the CPU with one rank."""
    resource_name: Annotated[str, Field(max_length=317, pattern=patterns.RESOURCE_NAME)] = "amd.com/gpu"
    """Extended resource that a GPU is."""
    resources: Resources = Field(default_factory=Resources.model_construct)
    shared_memory: Quantity | None = None
    """Size of /dev/shm; chosen from the number of GPUs if left out."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=64)] = []
    """Taints of nodes that the pods bear."""
    supplemental_groups: Annotated[list[GroupId], Field(max_length=64)] = []
    """Group ids of the host's render and video devices."""
    environment: Annotated[list[Variable], Field(max_length=64)] = []
    """Variables of the training containers, allowed names only."""

    @property
    def ranks_per_worker(self) -> int:
        """One rank per GPU; a pod without GPUs has one."""
        return max(1, self.gpus_per_worker)

    @property
    def world_size(self) -> int:
        """Ranks over all pods."""
        return self.replicas * self.ranks_per_worker
