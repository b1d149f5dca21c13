"""What may change in a FineTuneJob that exists."""

from __future__ import annotations

from finetune_operator.api.faults import Problem
from finetune_operator.api.job import FineTuneJob, Spec

ALWAYS = frozenset({"suspend", "ttl_seconds_after_finished", "deadline_seconds"})
WHILE_SUSPENDED = frozenset({"workers"})


def refused(stored: FineTuneJob, wanted: FineTuneJob) -> list[Problem]:
    """Find the changes that an update makes and may not make.

    Args:
        stored: the job as it is; whether it is suspended counts, not whether the update suspends it.
        wanted: the job as it would be.
    """
    problems = []
    for name, field in Spec.model_fields.items():
        if name in ALWAYS or getattr(stored.spec, name) == getattr(wanted.spec, name):
            continue
        path = ("spec", field.alias or name)
        if name not in WHILE_SUSPENDED:
            problems.append(Problem(path, "is immutable", "create a job with another name"))
        elif not stored.spec.suspend:
            message = "can change only while the job is suspended"
            problems.append(Problem(path, message, "set spec.suspend: true first"))
    return problems
