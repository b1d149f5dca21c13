"""Why a stage ended: one enum for ranks, agents, the operator and the command line."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Who has to act before another attempt can succeed."""

    NONE = "none"
    USER = "user"
    NODE = "node"
    PLATFORM = "platform"


class ExitReason(StrEnum):
    """The outcome of a stage, an attempt or a whole run.

    Each reason has an exit code of its own, so that a process that was killed
    before it could write its termination message still says why it ended.
    """

    SUCCEEDED = "Succeeded"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    INVALID_DATASET = "InvalidDataset"
    STORAGE_DENIED = "StorageDenied"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    MODEL_UNAVAILABLE = "ModelUnavailable"
    PREFLIGHT_FAILED = "PreflightFailed"
    RENDEZVOUS_TIMEOUT = "RendezvousTimeout"
    OUT_OF_MEMORY = "OutOfMemory"
    GPU_FAULT = "GpuFault"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    NON_FINITE_LOSS = "NonFiniteLoss"
    PREEMPTED = "Preempted"
    PAUSED = "Paused"
    INTERNAL = "Internal"

    @property
    def exit_code(self) -> int:
        """The process exit status that stands for this reason (0 to 125)."""
        return _FACTS[self][0]

    @property
    def retry(self) -> bool:
        """Whether another attempt without any change by the user can succeed."""
        return _FACTS[self][1]

    @property
    def fault(self) -> Fault:
        """Whose move it is."""
        return _FACTS[self][2]

    @classmethod
    def from_exit_code(cls, code: int) -> ExitReason:
        """Map a process's exit status back to its reason; unknown statuses are `INTERNAL`."""
        return next((reason for reason in cls if reason.exit_code == code), cls.INTERNAL)


# 1 and 2 are what Python and argparse exit with on their own, 126 and above belong to
# shells and signals: none of them may be mistaken for a reason of ours.
_FACTS: dict[ExitReason, tuple[int, bool, Fault]] = {
    ExitReason.SUCCEEDED: (0, False, Fault.NONE),
    ExitReason.INVALID_CONFIGURATION: (10, False, Fault.USER),
    ExitReason.INVALID_DATASET: (11, False, Fault.USER),
    ExitReason.STORAGE_DENIED: (12, False, Fault.USER),
    ExitReason.STORAGE_UNAVAILABLE: (13, True, Fault.PLATFORM),
    ExitReason.MODEL_UNAVAILABLE: (14, False, Fault.USER),
    ExitReason.PREFLIGHT_FAILED: (15, True, Fault.NODE),
    ExitReason.RENDEZVOUS_TIMEOUT: (16, True, Fault.PLATFORM),
    ExitReason.OUT_OF_MEMORY: (17, False, Fault.USER),
    ExitReason.GPU_FAULT: (18, True, Fault.NODE),
    ExitReason.COLLECTIVE_TIMEOUT: (19, True, Fault.PLATFORM),
    ExitReason.NON_FINITE_LOSS: (20, False, Fault.USER),
    ExitReason.PREEMPTED: (21, True, Fault.PLATFORM),
    ExitReason.PAUSED: (22, True, Fault.PLATFORM),
    ExitReason.INTERNAL: (23, True, Fault.PLATFORM),
}


class RunError(Exception):
    """A stage cannot go on, for a reason a person can read in one line.

    Args:
        reason: the exit reason reported to whoever started the stage.
        message: one line: what is wrong and where.
        hint: one line: what to do about it; empty where nothing better than the message is known.
    """

    def __init__(self, reason: ExitReason, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())
