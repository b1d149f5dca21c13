"""The state of a run as Prometheus metrics.

Names follow Prometheus' rules (base units, unit suffix). There is one time series a metric
and worker, but for `split` and `stage`, whose values are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from finetune_trainer.worker.progress import Progress

_STAGES = frozenset(
    {
        "preflight",
        "rendezvous",
        "load",
        "train",
        "evaluate",
        "save",
        "verify",
        "sample",
        "publish",
        "merge",
    }
)
"""What agents, ranks and publication say; others are told as `other`, so that the series stay few."""


class RunCollector(Collector):
    """Reads the state anew for every scrape.

    Args:
        progress: gives the current state; called from the server's threads.
    """

    def __init__(self, progress: Callable[[], Progress]) -> None:
        self._progress = progress

    def describe(self) -> list[Metric]:
        """Nothing in advance: which metrics there are depends on how far the run is."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        state = self._progress()
        identity = {"name": state.name, "namespace": state.namespace, "uid": state.uid}
        numbers = {"attempt": str(state.attempt), "worker": str(state.worker)}
        yield InfoMetricFamily(
            "finetune_run", "The run that this worker belongs to.", value=identity | numbers
        )
        yield CounterMetricFamily("finetune_warnings", "Warnings said by the run.", value=state.warnings)
        yield CounterMetricFamily("finetune_checkpoints", "Checkpoints written.", value=state.checkpoints)
        if state.stage is not None:
            name = state.stage.name if state.stage.name in _STAGES else "other"
            stage = GaugeMetricFamily(
                "finetune_stage", "1 for the stage that the run is in.", labels=["stage"]
            )
            stage.add_metric([name], 1)
            yield stage
        if state.evaluations:
            loss = GaugeMetricFamily(
                "finetune_evaluation_loss", "Mean loss a trained token of a split, in nats.", labels=["split"]
            )
            for split, evaluation in sorted(state.evaluations.items()):
                loss.add_metric([split], evaluation.loss)
            yield loss
        if state.checkpoint is not None:
            yield GaugeMetricFamily(
                "finetune_checkpoint_step", "Step of the newest checkpoint.", value=state.checkpoint.step
            )
            yield GaugeMetricFamily(
                "finetune_checkpoint_seconds",
                "Time the newest checkpoint took to write, 0 for one that was resumed from.",
                value=state.checkpoint.seconds,
            )
        yield from _step_metrics(state)


def _step_metrics(state: Progress) -> Iterator[Metric]:
    step = state.step
    if step is None:
        return
    yield CounterMetricFamily("finetune_tokens", "Tokens seen by all ranks in this run.", value=step.tokens)
    gauges = {
        "finetune_step": ("Optimizer steps done.", step.step),
        "finetune_planned_steps": ("Optimizer steps that the run consists of.", step.total_steps),
        "finetune_epoch": ("Passes over the training split so far.", step.epoch),
        "finetune_loss": ("Mean training loss a trained token, in nats.", step.loss),
        "finetune_learning_rate": ("Learning rate of the last step.", step.learning_rate),
        "finetune_gradient_norm": ("Norm of the gradient before clipping.", step.gradient_norm),
        "finetune_peak_memory_bytes": ("Peak memory of the fullest rank.", step.memory_bytes),
        "finetune_tokens_per_second": ("Tokens a second over all ranks.", step.tokens_per_second),
        "finetune_eta_seconds": ("Time until the last step, as estimated.", step.eta_seconds),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)
