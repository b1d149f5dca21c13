"""Which keys of DeepSpeed's configuration the job itself decides: an expert overlay may not set them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

DECIDED = {
    "train_batch_size": "training.globalBatchSize",
    "train_micro_batch_size_per_gpu": "training.microBatchSize",
    "gradient_accumulation_steps": "training.globalBatchSize and training.microBatchSize",
    "gradient_clipping": "training.maxGradientNorm",
    "optimizer": "training.learningRate and training.weightDecay",
    "scheduler": "training.scheduler",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "amp": "training.precision",
    "torch_autocast": "training.precision",
    "managed_gradient_accumulation": "training.globalBatchSize",
    "zero_optimization.stage": "deepspeed.stage",
    "zero_optimization.offload_optimizer.device": "deepspeed.offloadOptimizer",
    "zero_optimization.offload_param.device": "deepspeed.offloadParameters",
}
"""DeepSpeed's key: the field of the job that decides it."""


def contradictions(
    overlay: Mapping[str, object], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every key of `overlay` that the job decides, as its path and the field to set instead.

    A value where an object with decided keys belongs is one too: it would replace them.
    """
    for key, value in overlay.items():
        path = (*above, key)
        dotted = ".".join(path)
        within = [field for decided, field in DECIDED.items() if decided.startswith(f"{dotted}.")]
        if dotted in DECIDED:
            yield path, DECIDED[dotted]
        elif isinstance(value, Mapping):
            yield from contradictions(value, path)
        elif within:
            yield path, within[0]
