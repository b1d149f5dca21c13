"""`finetune data`: what will be learned from data, shown before any training."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TextIO, get_args

import pydantic

from finetune_trainer.config import Dataset, ExitReason, Model, RunError, Source, Split
from finetune_trainer.config.run import TEMPLATES
from finetune_trainer.data.build import Builder, InvalidDataError, OpenedSource
from finetune_trainer.data.faults import FaultLog, Skipped
from finetune_trainer.data.formats import Format
from finetune_trainer.data.preview import Preview
from finetune_trainer.data.report import Report
from finetune_trainer.data.show import Shown
from finetune_trainer.data.tokeniser import PATTERNS, read_files
from finetune_trainer.data.work import Plan
from finetune_trainer.storage import cache_folder, open_source
from finetune_trainer.worker.entry import load_config

SHOWN = 3
"""Rows shown to people who do not say how many; `--json` has all."""
QUICKSTART_MODEL = "SmolLM2-135M-Instruct"
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Check and show data.

    Returns:
        0, 2 for wrong usage, or the exit code of the reason for which the data would be refused.
    """
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    view: _Json | _People = _Json(sys.stdout) if arguments.json else _People()
    try:
        dataset, model = _configured(arguments.config) if arguments.config else _flags(arguments)
        if arguments.rows is not None:
            rows: int | None = arguments.rows
        else:
            rows = None if arguments.json else SHOWN
        return _show(dataset, model, rows, view)
    except RunError as error:
        faults = error.faults if isinstance(error, InvalidDataError) else FaultLog()
        view.refused(error, faults)
        return error.reason.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at exit: give it something that can be written to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        print(f"finetune data: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return ExitReason.STORAGE_UNAVAILABLE.exit_code


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetune data",
        description="Show what will be learned: a report, warnings, and rows as the model will see them.",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="files, folders or URIs of rows; or one job file (.yaml)"
    )
    parser.add_argument("--config", type=Path, help="a run.json in place of files and flags")
    parser.add_argument("--format", choices=("Auto", *get_args(Format)), default="Auto", help="default: Auto")
    parser.add_argument("--template", default="Model", help=f"one of {', '.join(TEMPLATES)}; default: Model")
    parser.add_argument("--model", help="folder or URI of the model whose tokenizer is used")
    parser.add_argument("--system-prompt", default="", help="for conversations that have none")
    parser.add_argument("--max-length", type=int, default=2048, metavar="N", help="tokens; default: 2048")
    parser.add_argument("--overlong", choices=("Truncate", "Drop", "Fail"), default="Truncate")
    parser.add_argument("--loss", choices=("Response", "LastTurn", "All"), default="Response")
    parser.add_argument(
        "--split", type=_split, default=Split(), metavar="8:1:1", help="train:validation:test"
    )
    parser.add_argument(
        "--rows", type=_count, metavar="N", help=f"rows to show; default: {SHOWN}, all with --json"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document in place of text")
    return parser


def _split(text: str) -> Split:
    try:
        train, validation, test = (int(part) for part in text.split(":"))
        return Split(train=train, validation=validation, test=test)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not three whole numbers such as 8:1:1") from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def _configured(path: Path) -> tuple[Dataset, Model]:
    config = load_config(path)
    return config.dataset, config.model


def _flags(arguments: argparse.Namespace) -> tuple[Dataset, Model]:
    if not arguments.files:
        raise RunError(ExitReason.INVALID_CONFIGURATION, "no files are given", "finetune data FILE...")
    sources = [Source(uri=_uri(name), format=arguments.format) for name in arguments.files]
    try:
        dataset = Dataset(
            sources=sources,
            template=arguments.template,
            system_prompt=arguments.system_prompt,
            max_length=arguments.max_length,
            overlong=arguments.overlong,
            loss=arguments.loss,
            split=arguments.split,
        )
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise RunError(ExitReason.INVALID_CONFIGURATION, f"{flag}: {first['msg']}") from None
    return dataset, Model(uri=_uri(arguments.model) if arguments.model else _quickstart_model())


def _uri(name: str) -> str:
    return name if "://" in name else f"file://{Path(name).expanduser().absolute()}"


def _quickstart_model() -> str:
    folder = cache_folder() / "models" / QUICKSTART_MODEL
    if not (folder / "tokenizer.json").is_file():
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            "no model is given, and the quickstart's is not there",
            "give --model DIR: lengths and the template depend on it",
        )
    return f"file://{folder}"


def _show(dataset: Dataset, model: Model, rows: int | None, view: _Json | _People) -> int:
    opened = open_source(model.uri, purpose="model", credentials=model.credentials, revision=model.revision)
    files = read_files(opened.fetch(cache_folder(), PATTERNS))
    sources = [
        OpenedSource(source, open_source(source.uri, purpose="data", credentials=source.credentials))
        for source in dataset.sources
    ]
    builder = Builder(
        Plan(dataset, files, datetime.now(UTC)),
        previews=rows,
        on_preview=view.row,
        on_skipped=view.skipped,
    )
    with tempfile.TemporaryDirectory(prefix="finetune-data-") as folder:
        report = builder.build(sources, Path(folder))
    view.done(report)
    return 0


class _People:
    """Rows as they come, then the report."""

    def __init__(self) -> None:
        self._shown = Shown()

    def row(self, preview: Preview) -> None:
        self._shown.row(preview)

    def skipped(self, skipped: Skipped) -> None:
        """Counted in the report."""

    def done(self, report: Report) -> None:
        self._shown.report(report)

    def refused(self, error: RunError, faults: FaultLog) -> None:
        print(f"finetune data: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        for line in faults.lines()[1:]:
            print(line, file=sys.stderr)


class _Json:
    """One document, its rows written as they come: a million rows are never held in memory."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = 0
        self._skipped: list[dict[str, object]] = []
        stream.write('{"rows": [')

    def row(self, preview: Preview) -> None:
        segments = [
            {"text": segment.text, "trained": segment.learned, "special": segment.special, "example": place}
            for place, example in enumerate(preview.examples)
            for segment in example
        ]
        row = {
            "file": preview.file,
            "row": preview.row,
            "turns": preview.turns,
            "tokens": preview.tokens,
            "truncated": preview.truncated,
            "segments": segments,
        }
        self._stream.write(("," if self._rows else "") + "\n" + json.dumps(row, ensure_ascii=False))
        self._rows += 1

    def skipped(self, skipped: Skipped) -> None:
        self._skipped.append({"file": skipped.file, "row": skipped.row, "reason": skipped.reason})

    def done(self, report: Report) -> None:
        warnings = [warning.model_dump() for warning in report.warnings]
        share = {"trained_token_share": report.trained_share}
        self._end(
            report=report.model_dump(exclude={"warnings"}) | share, warnings=warnings, faults=[], error=None
        )

    def refused(self, error: RunError, faults: FaultLog) -> None:
        listed = [{"file": fault.file, "row": fault.row, "reason": fault.reason} for fault in faults.listed]
        what = {
            "reason": str(error.reason),
            "message": error.message,
            "hint": error.hint,
            "faults": faults.total,
        }
        self._end(report=None, warnings=[], faults=listed, error=what)
        print(f"finetune data: {error.message}", file=sys.stderr)

    def _end(self, **rest: object) -> None:
        document = json.dumps({"skipped": self._skipped, **rest}, ensure_ascii=False)
        self._stream.write("\n], " + document[1:] + "\n")


if __name__ == "__main__":
    sys.exit(main())
