"""The versioned contract between whoever starts a run and the stages that carry it out.

This package imports pydantic and the standard library, nothing else: the operator
and the command line read it without the training stack.
"""

from finetune_trainer.config.events import (
    Artifact,
    Checkpoint,
    Evaluation,
    Event,
    Outcome,
    Prepared,
    Sample,
    Stage,
    Step,
    Warned,
    parse_event,
)
from finetune_trainer.config.layout import Layout
from finetune_trainer.config.outcomes import ExitReason, Fault, RunError
from finetune_trainer.config.run import (
    TEMPLATES,
    Adapter,
    CheckpointPolicy,
    Dataset,
    DeepSpeed,
    Model,
    Output,
    Quantization,
    Retry,
    RunConfig,
    Source,
    Split,
    Training,
    Workers,
)

__all__ = [
    "TEMPLATES",
    "Adapter",
    "Artifact",
    "Checkpoint",
    "CheckpointPolicy",
    "Dataset",
    "DeepSpeed",
    "Evaluation",
    "Event",
    "ExitReason",
    "Fault",
    "Layout",
    "Model",
    "Outcome",
    "Output",
    "Prepared",
    "Quantization",
    "Retry",
    "RunConfig",
    "RunError",
    "Sample",
    "Source",
    "Split",
    "Stage",
    "Step",
    "Training",
    "Warned",
    "Workers",
    "parse_event",
]
