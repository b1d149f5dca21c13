"""`finetune validate`: every fault of job files at once, with its line and what to write instead."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType

# pydantic looks for plugins in every installed package before it builds a model, and what it imports for
# that takes a fifth of this command's time, even where plugins are switched off.
_no_plugins = ModuleType("pydantic.plugin._loader")
_no_plugins.get_plugins = tuple  # type: ignore[attr-defined]
sys.modules.setdefault(_no_plugins.__name__, _no_plugins)

from finetune_operator.api import Fault, FineTuneJob, Judged, load  # noqa: E402
from finetune_operator.api.documents import read_file, read_stream  # noqa: E402

VALID, FAULTY, UNREADABLE = 0, 1, 2
SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "stdin"


@dataclass
class Report:
    """What was found in all files, in their order."""

    documents: list[Judged] = field(default_factory=list)
    """Every job, valid or not."""
    unreadable: list[str] = field(default_factory=list)
    """One line each: what could not be read, and why."""

    @property
    def faults(self) -> list[Fault]:
        """Those of all documents."""
        return [fault for document in self.documents for fault in document.faults]

    @property
    def exit_code(self) -> int:
        """0 valid, 1 faults in the files, 2 something could not be read."""
        return UNREADABLE if self.unreadable else FAULTY if self.faults else VALID


def main(argv: list[str]) -> int:
    """Run the command; returns 0 if all jobs are valid, 1 for faults, 2 for what could not be read."""
    options = _parser().parse_args(argv)
    report = examine(options.files, local=options.local)
    if options.json:
        import json

        print(json.dumps(_for_machines(report), ensure_ascii=False, indent=2))
    else:
        _show(report)
    return report.exit_code


def examine(names: list[str], *, local: bool | None = None) -> Report:
    """Judge files, folders (all YAML and JSON files below them) and `-` (standard input).

    Args:
        names: as on the command line.
        local: whether the jobs are for one machine; None decides by each job's output.
    """
    report = Report()
    for name in dict.fromkeys(names):
        path = Path(name)
        if name == "-" or not path.is_dir():
            report.documents += _named(_judge(report, name, local))
            continue
        found = [document for file in _files(path) for document in _judge(report, file, local)]
        jobs = [document for document in found if document.claims_to_be_a_job]
        report.documents += jobs
        if not jobs:
            report.unreadable.append(f"{name}: holds no job file ({', '.join(SUFFIXES)} with a FineTuneJob)")
    return report


def _judge(report: Report, name: str, local: bool | None) -> list[Judged]:
    """Judge one file; what cannot be read is added to the report."""
    try:
        if name == "-":
            return load(read_stream(sys.stdin.buffer), STDIN, local=local)
        return load(read_file(Path(name)), name, local=local)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        report.unreadable.append(f"{name}: {reason}{_near(Path(name), error)}")
        return []


def _named(documents: list[Judged]) -> list[Judged]:
    """The jobs of a file that the user named: if there is none, its first document is at fault."""
    ours = [document for document in documents if not document.other]
    if ours or not documents:
        return ours
    first = documents[0]
    fault = Fault(
        first.file, first.line, "kind", f"is {first.other}, not a FineTuneJob", "write kind: FineTuneJob"
    )
    return [replace(first, faults=(fault,))]


def _files(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(parent, name) for name in sorted(files) if name.endswith(SUFFIXES)):
            if path.is_file() or not path.exists():  # no pipe, which would be waited on; a dead link is told
                yield str(path)


def _near(path: Path, error: OSError) -> str:
    from difflib import get_close_matches

    if not isinstance(error, FileNotFoundError) or not path.parent.is_dir():
        return ""
    near = get_close_matches(path.name, _others(path), n=1, cutoff=0.8)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def _others(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir() if entry.name != path.name]


def summary(job: FineTuneJob) -> str:
    """Say in a few words what a job will do."""
    adapter, workers = job.spec.adapter, job.spec.workers
    gpus = _count(workers.gpus_per_worker, "GPU") if workers.gpus_per_worker else "CPU"
    return (
        f"{adapter.method} rank {adapter.rank} on {job.spec.model.uri}, "
        f"{_count(workers.replicas, 'worker')} x {gpus}, "
        f"global batch {job.spec.training.global_batch_size}"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _for_machines(report: Report) -> dict[str, object]:
    return {
        "valid": report.exit_code == VALID,
        "jobs": [
            {
                "file": document.file,
                "line": document.line,
                "name": document.job.metadata.name,
                "local": document.local,
                "summary": summary(document.job),
            }
            for document in report.documents
            if document.job
        ],
        "faults": [asdict(fault) for fault in report.faults],
        "unreadable": report.unreadable,
    }


def _show(report: Report) -> None:
    paint = _paint if _in_colour() else _plain
    per_file = Counter(document.file for document in report.documents)
    for document in report.documents:
        if document.job:
            place = f"{document.file}:{document.line}" if per_file[document.file] > 1 else document.file
            verdict = f'FineTuneJob "{document.job.metadata.name}" is valid'
            note = "; for this machine (finetune run), not for a cluster" if document.local else ""
            print(f"{paint(place, '1')}: {paint(verdict, '32')} ({summary(document.job)}){note}")
        for fault in document.faults:
            place = paint(f"{fault.file}:{fault.line}", "1")
            subject = f"{paint(fault.path, '36')}: " if fault.path else ""
            hint = f"; {fault.suggestion}" if fault.suggestion else ""
            print(f"{place}: {subject}{paint(fault.message, '31')}{hint}")
    if len(report.documents) > 1:
        valid = sum(1 for document in report.documents if document.job)
        faulty = len(report.documents) - valid
        faults = f", {faulty} with {_count(len(report.faults), 'fault')}" if faulty else ""
        print(f"{_count(len(report.documents), 'job')}: {valid} valid{faults}")
    sys.stdout.flush()
    for line in report.unreadable:
        print(f"finetune validate: {line}", file=sys.stderr)


def _in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _plain(text: str, code: str) -> str:
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetune validate",
        description="Check job files as a cluster would, and say every fault at once: its line, the field, "
        "what is wrong, what to write instead. Nothing is sent anywhere.",
        epilog="Exit code: 0 all jobs are valid, 1 there are faults, 2 wrong usage or an unreadable file. "
        "A job whose output is file:// is judged as one for this machine.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a YAML or JSON file, a folder, or - for stdin"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")
    parser.add_argument("-v", "--verbose", action="store_true", help="traceback of an unexpected error")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--local", action="store_const", const=True, help="judge as jobs for this machine: file:// is allowed"
    )
    where.add_argument(
        "--cluster", dest="local", action="store_const", const=False, help="judge as jobs for a cluster"
    )
    return parser
