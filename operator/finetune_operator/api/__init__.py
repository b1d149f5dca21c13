"""The FineTuneJob resource: its models, its rules, and job files."""

from finetune_operator.api.faults import Fault, Problem, spell
from finetune_operator.api.job import API_VERSION, GROUP, KIND, FineTuneJob, Spec
from finetune_operator.api.loading import InvalidJobError, Judged, load, load_job
from finetune_operator.api.parsing import parse
from finetune_operator.api.updates import refused

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "Fault",
    "FineTuneJob",
    "InvalidJobError",
    "Judged",
    "Problem",
    "Spec",
    "load",
    "load_job",
    "parse",
    "refused",
    "spell",
]
