"""The last stage of a run: verify what the ranks left behind, show what it can do, publish it.

    python -m finetune_trainer.artifact.publish --config run.json --work DIR

Writes events to its standard output; what libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from finetune_trainer import libraries
from finetune_trainer.artifact import assemble, verify
from finetune_trainer.artifact.facts import Facts, read_report, stop_tokens
from finetune_trainer.artifact.origin import origin
from finetune_trainer.artifact.prompts import Held, Reader, choose
from finetune_trainer.artifact.results import TrainingResults
from finetune_trainer.config import (
    Artifact,
    Event,
    ExitReason,
    Layout,
    Outcome,
    RunConfig,
    RunError,
    Stage,
    Warned,
)
from finetune_trainer.data.arrays import Examples
from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.report import Report
from finetune_trainer.data.tokeniser import Tokeniser, read_files
from finetune_trainer.storage import Output, cache_folder, open_output, open_source
from finetune_trainer.storage.failures import local
from finetune_trainer.worker.entry import failure, load_config

SAMPLES = 3
_TRACEBACK_LINES = 12

Emit = Callable[[Event], None]


def main(argv: list[str] | None = None) -> int:
    """Run the stage; returns the exit code of its outcome's reason."""
    parser = argparse.ArgumentParser(prog="python -m finetune_trainer.artifact.publish")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args(argv)
    # Held back for events: what libraries print must not end up among them.
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        events.write(event.model_dump_json(exclude={"worker"}) + "\n")

    # As Ctrl-C does: an exception in the main thread, so that half-written folders are cleared away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    step = 0
    try:
        run = load_config(arguments.config)
        results = TrainingResults.load(arguments.work)
        step = results.step
        publish(run, results, arguments.work, emit)
        outcome = Outcome(reason=ExitReason.SUCCEEDED, step=step)
    except RunError as error:
        outcome = failure(error).model_copy(update={"step": step})
    except KeyboardInterrupt:
        outcome = Outcome(
            reason=ExitReason.PREEMPTED,
            message="stopped before the adapter was published",
            hint="run the same job again: it continues from the last checkpoint",
            step=step,
        )
    except Exception as error:  # the edge of the process: whatever it was becomes its one outcome
        outcome = _unexpected(error, step)
    emit(outcome)
    return outcome.reason.exit_code


def publish(run: RunConfig, results: TrainingResults, work: Path, emit: Emit) -> None:
    """Verify, sample and publish the adapter in `work/adapter`, and the merged model where it is asked for.

    Raises:
        RunError: it is not fit to be published, or storage refused.
    """
    emit(Stage(name="verify", message="the adapter's tensors, and what it changes"))
    adapter, prefix = work / "adapter", Layout(run.uid).adapter(run.attempt)
    check_adapter_files(adapter, run)
    output = open_output(run.output.uri, credentials=run.output.credentials)
    prepared, report = _fetch_prepared(run, output, work)
    base = open_source(
        run.model.uri, purpose="model", credentials=run.model.credentials, revision=run.model.revision
    ).fetch(cache_folder())
    tokeniser = Tokeniser(read_files(base))
    stops, own_stop = stop_tokens(tokeniser, report.end_of_turn)
    facts = Facts(run, origin(run.model, base), report, results, stops, own_stop)
    template = prepared / assemble.TEMPLATE
    reader = Reader(tokeniser, _template(template, tokeniser) if facts.chat else None)
    held = _held_out(prepared, report, reader, emit)

    _check_effect(facts, base, adapter, held, reader, emit)

    with local(work, "write"):
        scratch = tempfile.TemporaryDirectory(prefix="publish-", dir=work)
    with scratch as name:
        folder = Path(name) / "adapter"
        emit(Stage(name="publish", message=output.uri(prefix)))
        assemble.assemble_adapter(facts, adapter, base, template, folder, output.uri(prefix))
        metadata = facts.metadata("adapter", datetime.now(UTC)).model_dump(mode="json")
        manifest = output.publish(folder, prefix, metadata)
        emit(
            Artifact(
                uri=output.uri(prefix),
                bytes=manifest.size,
                manifest_sha256=manifest.sha256,
                serve_command=facts.serve_command(output.uri(prefix)),
                test_loss_before=results.test_loss_before,
                test_loss_after=results.test_loss_after,
            )
        )
        if run.output.merge:
            _publish_merged(facts, output, base, folder, template, held.tokens, emit)


def check_adapter_files(adapter: Path, run: RunConfig) -> None:
    """Check the adapter's folder and configuration, without loading anything.

    Raises:
        RunError: it is not the adapter of this job.
    """
    with local(adapter, "read"):
        names = [file.name for file in adapter.iterdir()] if adapter.is_dir() else []
        verify.check_files(names)
        try:
            config = json.loads((adapter / verify.CONFIG).read_bytes())
        except ValueError as error:
            raise RunError(
                ExitReason.INTERNAL, f"the adapter is refused: {verify.CONFIG} is damaged: {error}"
            ) from None
        verify.check_config(config, run.adapter)


def _fetch_prepared(run: RunConfig, output: Output, work: Path) -> tuple[Path, Report]:
    """The prepared data's folder on this machine, with the report and the splits that are held out."""
    prefix, folder = Layout(run.uid).prepared, work / "prepared"
    folder = output.fetch(prefix, folder, ["report.json", assemble.TEMPLATE, "test/*", "validation/*"])
    report = read_report(folder / "report.json")
    if not any(report.splits[name].examples for name in ("test", "validation")):
        folder = output.fetch(prefix, work / "prepared", ["train/*"])
    return folder, report


def _template(file: Path, tokeniser: Tokeniser) -> ChatTemplate:
    return ChatTemplate(file.read_text(encoding="utf-8"), tokeniser.files.named, datetime.now(UTC))


@dataclass(frozen=True)
class _HeldOut:
    tokens: list[int]
    """An example to compare logits over."""
    questions: list[Held]


def _held_out(prepared: Path, report: Report, reader: Reader, emit: Emit) -> _HeldOut:
    """What the checks and samples are made with: never trained on, where the split allows it."""
    for name in ("test", "validation"):
        if report.splits[name].examples:
            examples = Examples(prepared / name)
            return _HeldOut(examples.tokens(0).tolist(), choose(examples, reader, SAMPLES))
    emit(
        Warned(
            message="test and validation splits are empty: no held-out questions can be shown",
            hint="give dataset.split a share for test",
        )
    )
    return _HeldOut(Examples(prepared / "train").tokens(0).tolist(), [])


def _check_effect(
    facts: Facts, base: Path, adapter: Path, held: _HeldOut, reader: Reader, emit: Emit
) -> None:
    """Load base and adapter as anybody would, compare the two, and answer the held-out prompts."""
    run = facts.run
    libraries.settle()
    # torch and its friends take seconds to import: a wrong folder has been told by now.
    from finetune_trainer.artifact.base import load_adapter, load_base
    from finetune_trainer.artifact.generate import sample
    from finetune_trainer.artifact.loadback import check_effect, expected_shapes, read_facts

    tensors = read_facts(adapter / verify.WEIGHTS)
    model = load_base(
        base,
        precision=run.training.precision,
        quantization=run.adapter.quantization,
        trust_remote_code=run.model.trust_remote_code,
        gpu=run.workers.gpus_per_worker > 0,
    )
    verify.check_tensors(tensors, expected_shapes(model, run.adapter))
    tuned = load_adapter(model, adapter)
    change = check_effect(tuned, held.tokens)
    emit(Stage(name="sample", message=f"logits of a held-out example change by up to {change:.3g}"))
    for question in held.questions:
        emit(sample(tuned, question, reader, facts.stops))


def _publish_merged(
    facts: Facts,
    output: Output,
    base: Path,
    adapter: Path,
    template: Path,
    tokens: list[int],
    emit: Emit,
) -> None:
    from finetune_trainer.artifact.merge import merge

    prefix = Layout(facts.run.uid).merged(facts.run.attempt)
    uri = output.uri(prefix)
    emit(Stage(name="merge", message=uri))
    folder = adapter.with_name("merged")
    change = merge(base, adapter, folder, tokens, trust_remote_code=facts.run.model.trust_remote_code)
    if change.lost:
        emit(
            Warned(
                message=f"merged weights are rounded to {change.dtype}, which changes the logits by "
                f"{change.error:.1e} of their size, and the adapter itself by {change.effect:.1e}",
                hint="serve the adapter beside its base model where that matters",
            )
        )
    assemble.complete_merged(facts, base, template, folder, uri)
    output.publish(folder, prefix, facts.metadata("merged", datetime.now(UTC)).model_dump(mode="json"))


def _unexpected(error: Exception, step: int) -> Outcome:
    text = " ".join(str(error).split())[:500] or type(error).__name__
    lines = "".join(traceback.format_exception(error)).splitlines()
    print("\n".join(lines), file=sys.stderr)
    # By name: torch's own class cannot be imported before torch is.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Outcome(
            reason=ExitReason.OUT_OF_MEMORY,
            message=f"no memory left to load the adapter back: {text}",
            hint="raise workers.resources, or switch output.merge off",
            step=step,
        )
    return Outcome(
        reason=ExitReason.INTERNAL,
        message=f"{type(error).__name__}: {text}",
        step=step,
        traceback=lines[-_TRACEBACK_LINES:],
    )


if __name__ == "__main__":
    sys.exit(main())
