"""Sources to prepared arrays and a report, in one pass over the data and bounded memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from finetune_trainer.config import ExitReason, RunError, Source
from finetune_trainer.data import advice, formats, readers
from finetune_trainer.data.arrays import Spool
from finetune_trainer.data.faults import Fault, FaultLog, FileFault, Skipped
from finetune_trainer.data.pool import Pool, Task, default_processes
from finetune_trainer.data.preview import Preview
from finetune_trainer.data.report import File, Reason, Report, SplitCount, lengths
from finetune_trainer.data.split import SPLITS, assign
from finetune_trainer.data.work import DIGEST, Plan, Result, Worker

REPORT = "report.json"
TEMPLATE = "chat_template.jinja"
_EXAMPLES_OF_A_REASON = 20


class InvalidDataError(RunError):
    """The dataset is refused; `faults` has every fault that was listed."""

    def __init__(self, faults: FaultLog) -> None:
        first = faults.listed[0]
        more = faults.total - 1
        message = f"{first}" + (f" (and {more} more fault{'s' if more > 1 else ''})" if more else "")
        super().__init__(ExitReason.INVALID_DATASET, message)
        self.faults = faults


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source of the job, opened."""

    config: Source
    rows: readers.RowSource

    def fingerprint(self) -> str:
        """Changes with the files of the source."""
        return self.rows.fingerprint()


class Builder:
    """Prepares one dataset.

    Args:
        plan: how rows become tokens.
        previews: of so many rows, also keep what the model will see; None means all.
        on_preview: called with each of them, in order.
        processes: how many to use; None means one per core.

    Raises:
        RunError: the tokenizer or the template cannot be used.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        previews: int | None = 0,
        on_preview: Callable[[Preview], None] = lambda _: None,
        on_skipped: Callable[[Skipped], None] = lambda _: None,
        processes: int | None = None,
    ) -> None:
        self._plan = plan
        self._worker = Worker(plan)
        self._pool = Pool(
            plan, self._worker, 1 << 62 if previews is None else previews, processes or default_processes()
        )
        self._on_preview = on_preview
        self._on_skipped = on_skipped
        self.faults = FaultLog()
        self._files: list[File] = []
        self._tally: Counter[str] = Counter()
        self._scripts: Counter[str] = Counter()
        self._skipped = _Reasons()
        self._dropped = _Reasons()
        self._closed: set[int] = set()
        self._file_faults: list[tuple[int, Fault]] = []

    def build(self, sources: Sequence[OpenedSource], folder: Path) -> Report:
        """Read all sources and write the arrays, the chat template and the report.

        Args:
            sources: in the order of the job.
            folder: an empty folder for the results.

        Raises:
            InvalidDataError: rows or files at fault.
            RunError: InvalidDataset, nothing is left to train on; storage that cannot be read.
        """
        report = Report(
            template=self._plan.dataset.template,
            max_length=self._plan.dataset.max_length,
            overlong=self._plan.dataset.overlong,
            loss=self._plan.dataset.loss,
            wanted_splits=[name for name in SPLITS if getattr(self._plan.dataset.split, name)],
        )
        spool = Spool(folder)
        try:
            rows, digests = self._read(sources, spool, report)
            if self.faults.total:
                raise InvalidDataError(self.faults)
            if not len(rows):
                raise self._nothing()
            self._write(spool, rows, digests, folder, report)
        finally:
            spool.close()
        if self._worker.template.chat is not None:
            (folder / TEMPLATE).write_text(self._worker.template.chat.source, encoding="utf-8")
        (folder / REPORT).write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return report

    def _read(
        self, sources: Sequence[OpenedSource], spool: Spool, report: Report
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        rows: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        digests: list[npt.NDArray[np.void]] = [np.zeros(0, DIGEST)]
        base = 0
        for task, result in self._pool.run(self._tasks(sources, report)):
            if task.file in self._closed:
                continue
            self._collect(task, result)
            if len(result.rows) and not self.faults.total:
                spool.add(result.tokens, result.trained, result.lengths, result.example_rows + base)
                rows.append(result.rows + base)
                digests.append(result.digests)
                if not report.end_of_turn:
                    report.end_of_turn = self._end(result)
            base += result.records
        self._add_file_faults()
        return np.concatenate(rows), np.concatenate(digests)

    def _collect(self, task: Task, result: Result) -> None:
        self._files[task.file].rows += result.records
        for fault in result.faults:
            self.faults.add(task.file, fault)
        if result.syntax and task.array:
            self._closed.add(task.file)
        self._tally.update(result.tally)
        self._scripts.update(result.scripts)
        for skipped in result.skipped:
            self._skipped.add(skipped)
            self._on_skipped(skipped)
        for dropped in result.dropped:
            self._dropped.add(dropped)
            self._on_skipped(dropped)
        for preview in result.previews:
            self._on_preview(preview)

    def _end(self, result: Result) -> str:
        last = int(np.flatnonzero(result.trained[: result.lengths[0]])[-1])
        return self._worker.tokeniser.decode([int(result.tokens[last])])

    def _tasks(self, sources: Sequence[OpenedSource], report: Report) -> Iterator[Task]:
        for source in sources:
            selection = readers.select([entry.path for entry in source.rows.entries()])
            report.left_out += selection.held_out
            if not selection.files:
                self._file_faults.append(
                    (
                        len(self._files),
                        Fault(source.config.uri, None, "holds no files of rows (JSON, CSV, Parquet)"),
                    )
                )
            for path in selection.files:
                place = len(self._files)
                name = self._name(source.config.uri, path)
                self._files.append(File(name=name, format="", rows=0))
                try:
                    with source.rows.open(path) as stream:
                        yield from self._file_tasks(readers.blocks(stream, path), place, source.config.format)
                except FileFault as fault:
                    self._file_faults.append((place, Fault(name, fault.row, fault.reason)))

    def _name(self, uri: str, path: str) -> str:
        """The file's name in messages: with its source where the same name came up before."""
        taken = any(file.name == path for file in self._files)
        return f"{uri.removesuffix(path).rstrip('/')}/{path}" if taken else path

    def _file_tasks(self, blocks: Iterator[readers.Block], place: int, declared: str) -> Iterator[Task]:
        file = self._files[place]
        form: formats.Format | None = None
        for block in blocks:
            if form is None:
                first = readers.first_record(block)
                if first is not None:
                    formats.check_wrapped(first)
                    form = formats.detect(first) if declared == "Auto" else cast("formats.Format", declared)
                    file.format = form
                    if form in ("Alpaca", "ShareGPT", "Messages"):
                        # Asked for here, so that a model without a template is no fault of a row.
                        self._worker.template.for_tools(tools=False)
            # Without one readable record the format does not matter: every record is a fault.
            array = isinstance(block, readers.Objects)
            encode = not self.faults.total or self._plan.dataset.overlong == "Fail"
            yield Task(block, place, file.name, form or "Alpaca", array, encode)

    def _add_file_faults(self) -> None:
        # Behind the faults of the rows before them, which are only known by now.
        for place, fault in self._file_faults:
            if place not in self._closed:
                self.faults.add(place, fault)

    def _nothing(self) -> RunError:
        hint = ""
        if self._dropped.total:
            why = f"all {self._dropped.total} rows are {self._dropped.first()}"
            hint = "raise dataset.maxLength"
        elif self._skipped.total:
            why = f"all {self._skipped.total} rows were skipped; the first: {self._skipped.first()}"
        else:
            why = "there are no rows"
        names = ", ".join(file.name for file in self._files[:3])
        return RunError(ExitReason.INVALID_DATASET, f"{names}: nothing is left to train on: {why}", hint)

    def _write(
        self,
        spool: Spool,
        rows: npt.NDArray[np.int64],
        digests: npt.NDArray[np.void],
        folder: Path,
        report: Report,
    ) -> None:
        parts = assign(rows, self._plan.dataset.split)
        example_parts = parts[np.searchsorted(rows, spool.rows)]
        trained = spool.write(folder, SPLITS, example_parts)
        report.rows, report.examples = len(rows), len(example_parts)
        report.tokens = int(spool.lengths.sum())
        report.trained_tokens = sum(trained)
        report.lengths = lengths(spool.lengths)
        for part, name in enumerate(SPLITS):
            report.splits[name] = SplitCount(
                rows=int((parts == part).sum()),
                examples=int((example_parts == part).sum()),
                tokens=int(spool.lengths[example_parts == part].sum()),
                trained_tokens=trained[part],
            )
        _, groups = np.unique(digests, return_inverse=True)
        report.duplicates = len(rows) - int(groups.max()) - 1
        report.duplicates_across_splits = int(np.isin(groups[parts != 0], groups[parts == 0]).sum())
        report.dataset_hash = hashlib.sha256(digests.tobytes()).hexdigest()
        report.skipped, report.skipped_reasons = self._skipped.total, self._skipped.reasons()
        report.dropped, report.dropped_reasons = self._dropped.total, self._dropped.reasons()
        report.truncated = self._tally["truncated"]
        report.scripts = dict(self._scripts.most_common())
        report.files = self._files
        report.with_system_prompt = self._tally["system prompts"]
        report.with_tools = self._tally["with tools"]
        report.spelled_tokens = self._tally["spelled"]
        report.warnings = advice.warnings(report, self._tally, self._worker.template, self._worker.tokeniser)


class _Reasons:
    """Left-out rows by reason, with the first few of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._rows: dict[str, list[str]] = {}

    def add(self, skipped: Skipped) -> None:
        self._counts[skipped.reason] += 1
        rows = self._rows.setdefault(skipped.reason, [])
        if len(rows) < _EXAMPLES_OF_A_REASON:
            rows.append(f"{skipped.file}, row {skipped.row}")

    @property
    def total(self) -> int:
        return self._counts.total()

    def first(self) -> str:
        return next(iter(self._counts))

    def reasons(self) -> list[Reason]:
        return [
            Reason(reason=reason, count=count, rows=self._rows[reason])
            for reason, count in self._counts.most_common()
        ]
