"""What a person wants to know when a run has ended: pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from finetune_operator.cli.run.words import clean, size
from finetune_trainer.config import Artifact, Checkpoint, Event, ExitReason, Outcome, Sample

_QUESTION = "your question"
_QUESTION_LENGTH = 80
_LABEL = 12


@dataclass
class Findings:
    """What the end of a run is told from."""

    samples: list[Sample] = field(default_factory=list)
    artifact: Artifact | None = None
    checkpoint: Checkpoint | None = None

    def note(self, event: Event) -> None:
        """Keep an event if it is one that counts in the end."""
        match event:
            case Sample():
                self.samples.append(event)
            case Artifact():
                self.artifact = event
            case Checkpoint():
                self.checkpoint = event


def place(uri: str) -> str:
    """A URI as people use it on this machine: a folder's path, anything else as it is."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:///") else uri


def success(findings: Findings, program: str = "finetune") -> list[str]:
    """The lines that end a run which went well; `program` is what to type for `finetune`."""
    artifact = findings.artifact
    lines: list[str] = []
    if artifact is not None:
        before, after = artifact.test_loss_before, artifact.test_loss_after
        if before is not None and after is not None:
            lines.append(
                _labelled("test loss", f"{before:.3f} before, {after:.3f} after{_factor(before, after)}")
            )
    if findings.samples:
        lines += [_labelled("held out", f"{len(findings.samples)} questions that were not trained"), ""]
    for sample in findings.samples:
        lines += [
            f"  question  {clean(sample.prompt)}",
            f"  expected  {clean(sample.expected)}",
            f"  before    {clean(sample.before)}",
            f"  after     {clean(sample.after)}",
            "",
        ]
    if findings.checkpoint is not None:
        lines.append(_labelled("checkpoint", f"step {findings.checkpoint.step}"))
    if artifact is not None:
        lines += adapter(artifact.uri, artifact.bytes, _question(findings.samples), program)
    return lines


def adapter(uri: str, count: int, question: str = _QUESTION, program: str = "finetune") -> list[str]:
    """Where an adapter lies, and what to type next.

    Args:
        uri: where it was published.
        count: its size in bytes.
        question: what to ask it.
        program: what to type for `finetune`.
    """
    folder = place(uri)
    return [
        _labelled("adapter", f"{folder} ({size(count)})"),
        _labelled("next", f"{program} try {shlex.quote(folder)} {shlex.quote(question)}"),
    ]


def failure(
    outcome: Outcome, logs: Path | None, findings: Findings | None = None, *, verbose: bool = False
) -> list[str]:
    """The lines that end a run which failed.

    Args:
        outcome: the root cause.
        logs: where the logs lie; None before there are any.
        findings: what was reached before.
        verbose: whether to show the failing process's traceback.
    """
    lines = [f"finetune run: {outcome.reason}: {clean(outcome.message)}"]
    if outcome.hint:
        lines.append(f"  hint: {clean(outcome.hint)}")
    if verbose:
        lines += [f"  | {line}" for line in outcome.traceback]
    if outcome.reason.retry and findings is not None and findings.checkpoint is not None:
        lines.append(f"  next: the same command continues from step {findings.checkpoint.step}")
    if logs is not None:
        more = " (-v shows the traceback)" if outcome.traceback and not verbose else ""
        lines.append(f"  logs: {logs}{more}")
    return lines


def stopped(outcome: Outcome, findings: Findings) -> list[str]:
    """The lines that end a run which was asked to stop."""
    step = max(outcome.step, findings.checkpoint.step if findings.checkpoint else 0)
    saved = findings.checkpoint.step if findings.checkpoint else 0
    what = f"stopped at step {step}" if step else "stopped before the first step"
    again = f"to continue from step {saved}" if saved else "to begin again"
    return [f"finetune run: {outcome.reason}: {what}; run the same command {again}"]


def is_stop(outcome: Outcome) -> bool:
    """Whether a run ended because someone asked it to."""
    return outcome.reason in (ExitReason.PREEMPTED, ExitReason.PAUSED)


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _factor(before: float, after: float) -> str:
    return f" ({before / after:.1f} times lower)" if 0 < after < before else ""


def _question(samples: list[Sample]) -> str:
    """A question that the model learned to answer, if one is fit for a command line."""
    questions = (clean(sample.prompt) for sample in samples)
    return next((question for question in questions if 0 < len(question) <= _QUESTION_LENGTH), _QUESTION)
