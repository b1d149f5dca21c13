"""Reads a RunConfig, prepares its dataset, publishes the arrays; or finds them published already."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TextIO

from finetune_trainer.config import (
    Event,
    ExitReason,
    Layout,
    Outcome,
    Prepared,
    RunConfig,
    RunError,
    Stage,
    Warned,
)
from finetune_trainer.data.build import REPORT, Builder, InvalidDataError, OpenedSource
from finetune_trainer.data.report import Report
from finetune_trainer.data.tokeniser import PATTERNS, read_files
from finetune_trainer.data.work import Plan
from finetune_trainer.storage import Output, cache_folder, open_output, open_source
from finetune_trainer.worker.entry import failure, load_config

PIPELINE = 1
"""Raised when the same rows come to be prepared differently, so that older arrays are not reused."""


class _Stopped(BaseException):
    """SIGTERM or SIGINT arrived. Not an Exception: nothing that handles errors may swallow it."""


def main(config: Path, work: Path) -> int:
    """Run the stage; events go to standard output, all else to standard error.

    Returns:
        The exit code of the outcome's reason.
    """
    with _own_output() as events:
        outcome = _run(config, work, _Events(events))
        events.write(outcome.model_dump_json() + "\n")
    return outcome.reason.exit_code


class _Events:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def emit(self, event: Event) -> None:
        """Write one event, at once."""
        self._stream.write(event.model_dump_json() + "\n")
        self._stream.flush()


@contextlib.contextmanager
def _own_output() -> Iterator[TextIO]:
    """Keep standard output for events: whatever libraries print goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as stream:
        try:
            yield stream
        finally:
            stream.flush()
            os.dup2(kept, 1)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _run(config: Path, work: Path, events: _Events) -> Outcome:
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _prepare(load_config(config), work, events)
    except _Stopped:
        return Outcome(reason=ExitReason.PREEMPTED, message="stopped before the data was prepared")
    except InvalidDataError as error:
        for line in error.faults.lines():
            print(line, file=sys.stderr)
        return failure(error)
    except RunError as error:
        return failure(error)
    except OSError as error:
        return _disk(error, work)
    except Exception as error:  # the last resort: a fault of ours must still end with an outcome
        lines = traceback.format_exc().splitlines()
        return Outcome(
            reason=ExitReason.INTERNAL, message=f"{type(error).__name__}: {error}", traceback=lines[-20:]
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _disk(error: OSError, work: Path) -> Outcome:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return Outcome(
        reason=ExitReason.STORAGE_UNAVAILABLE,
        message=f"{error.filename or work}: {error.strerror or error}",
        hint=f"free some space under {work}" if full else "",
    )


def _prepare(config: RunConfig, work: Path, events: _Events) -> Outcome:
    events.emit(Stage(name="prepare", message="reading what the data and the tokenizer are"))
    output = open_output(config.output.uri, credentials=config.output.credentials)
    layout = Layout(config.uid)
    model = open_source(
        config.model.uri,
        purpose="model",
        credentials=config.model.credentials,
        revision=config.model.revision,
    )
    tokenizer = model.fetch(cache_folder(), PATTERNS)
    sources = [
        OpenedSource(source, open_source(source.uri, purpose="data", credentials=source.credentials))
        for source in config.dataset.sources
    ]
    fingerprint = _fingerprint(config, tokenizer, sources)
    manifest = output.manifest(layout.prepared)
    work.mkdir(parents=True, exist_ok=True)
    if manifest is not None and manifest.metadata.get("fingerprint") == fingerprint:
        return _reuse(output, layout, work, events)
    output.check_writable()
    # What is there was made of other data, or by a stage that was killed: readers must not find it.
    output.remove(layout.prepared)
    plan = Plan(config.dataset, read_files(tokenizer), datetime.now(UTC))
    folder = Path(tempfile.mkdtemp(dir=work, prefix="prepare-"))
    try:
        report = Builder(plan).build(sources, folder)
        events.emit(Stage(name="publish", message=f"{report.rows} rows, {report.tokens} tokens"))
        output.publish(folder, layout.prepared, {"fingerprint": fingerprint, "dataset": report.dataset_hash})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _tell(report, events, reused=False)
    return Outcome(reason=ExitReason.SUCCEEDED)


def _reuse(output: Output, layout: Layout, work: Path, events: _Events) -> Outcome:
    with tempfile.TemporaryDirectory(dir=work, prefix="report-") as folder:
        found = output.fetch(layout.prepared, Path(folder), [REPORT])
        report = Report.model_validate_json((found / REPORT).read_bytes())
    _tell(report, events, reused=True)
    return Outcome(reason=ExitReason.SUCCEEDED, message="the data was prepared before")


def _tell(report: Report, events: _Events, *, reused: bool) -> None:
    for warning in report.warnings:
        events.emit(Warned(message=warning.message, hint=warning.hint))
    events.emit(
        Prepared(
            rows=report.rows,
            tokens=report.tokens,
            trained_token_share=report.trained_share,
            dropped=report.dropped + report.skipped,
            truncated=report.truncated,
            splits={name: split.rows for name, split in report.splits.items()},
            reused=reused,
        )
    )


def _fingerprint(config: RunConfig, tokenizer: Path, sources: list[OpenedSource]) -> str:
    """Identify everything that the arrays depend on."""
    digest = hashlib.sha256()
    tokenizers = importlib.metadata.version("tokenizers")
    digest.update(json.dumps([PIPELINE, tokenizers, config.dataset.model_dump(mode="json")]).encode())
    for path in sorted(tokenizer.iterdir()):
        if path.is_file() and any(path.match(pattern) for pattern in PATTERNS):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    for source in sources:
        digest.update(source.fingerprint().encode())
    return digest.hexdigest()
