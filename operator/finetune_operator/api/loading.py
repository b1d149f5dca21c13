"""Job files: every FineTuneJob in a text, or every fault with its line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath

from finetune_operator.api import documents
from finetune_operator.api.faults import Fault, Problem, printable, spell
from finetune_operator.api.job import GROUP, KIND, FineTuneJob
from finetune_operator.api.parsing import is_local, parse


@dataclass(frozen=True)
class Judged:
    """One document of a job file and the verdict on it."""

    file: str
    line: int
    job: FineTuneJob | None
    """None if there are faults, or if the document is another resource's."""
    faults: tuple[Fault, ...] = ()
    local: bool = False
    """Judged as a job for one machine, where `file://` is allowed."""
    other: str = ""
    """What it is if it is clearly another resource, like `v1 Secret`; empty for a FineTuneJob."""
    claims_to_be_a_job: bool = True
    """It is not another resource, and no file of values or settings either: those name no kind, no spec."""


class InvalidJobError(Exception):
    """A job file that cannot be used.

    Args:
        faults: all of them, in the order of the file; at least one.
    """

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def load(data: bytes, file: str, *, local: bool | None = None) -> list[Judged]:
    """Judge every document of a job file.

    Args:
        data: the file's bytes, YAML (several documents too) or JSON, read as the API server reads them.
        file: its name, for the faults.
        local: whether the jobs are for one machine; None decides by each job's output (`file://` or not).
    """
    judged: list[Judged] = []
    try:
        for document in documents.read(data):
            judged.append(_judge(document, file, local))  # noqa: PERF401 - keeps those before a syntax error
    except documents.DocumentError as error:
        fault = Fault(file, error.line, "", error.message, error.suggestion)
        judged.append(Judged(file, error.line, None, (fault,)))
    if not judged:
        fault = Fault(file, 1, "", "is empty", "write a FineTuneJob into it")
        judged.append(Judged(file, 1, None, (fault,)))
    return judged


def load_job(path: FilePath, *, local: bool | None = None) -> FineTuneJob:
    """Read the one FineTuneJob of a file.

    Other resources in the same file (a Secret, say) are passed over.

    Raises:
        OSError: the file cannot be read.
        InvalidJobError: it holds no job, several, or a faulty one.
    """
    judged = [
        document for document in load(documents.read_file(path), str(path), local=local) if not document.other
    ]
    if faults := tuple(fault for document in judged for fault in document.faults):
        raise InvalidJobError(faults)
    jobs = [document.job for document in judged if document.job]
    if len(jobs) == 1:
        return jobs[0]
    message = f"holds {len(jobs)} jobs" if jobs else f"holds no {KIND}"
    raise InvalidJobError((Fault(str(path), 1, "", message, "name a file with one job"),))


def _judge(document: documents.Document, file: str, local: bool | None) -> Judged:
    value = document.value
    if other := _other_resource(value):
        return Judged(file, document.line, None, other=other, claims_to_be_a_job=False)
    as_local = is_local(value) if local is None else local
    verdict = parse(value, local=as_local, text_of=document.text_of)
    problems = document.problems + (verdict if isinstance(verdict, list) else [])
    faults = sorted(set(_faults(problems, document, file)), key=lambda fault: (fault.line, fault.path))
    job = verdict if isinstance(verdict, FineTuneJob) and not faults else None
    claims = not isinstance(value, dict) or any(key in value for key in ("apiVersion", "kind", "spec"))
    return Judged(file, document.line, job, tuple(faults), as_local, claims_to_be_a_job=claims)


def _faults(problems: list[Problem], document: documents.Document, file: str) -> Iterator[Fault]:
    for problem in problems:
        line = problem.line or document.line_of(problem.path)
        yield Fault(file, line, spell(problem.path), problem.message, problem.suggestion)


def _other_resource(value: object) -> str:
    """What a document is if it names a kind that is not ours and not ours misspelled; else empty."""
    if not isinstance(value, dict):
        return ""
    version, kind = value.get("apiVersion"), value.get("kind")
    if not (isinstance(version, str) and isinstance(kind, str) and version and kind):
        return ""
    if version.split("/")[0] == GROUP or kind == KIND:
        return ""
    from difflib import get_close_matches  # after the return that nearly every job takes

    if get_close_matches(kind.lower(), [KIND.lower()], cutoff=0.7):
        return ""
    return f"{printable(version)} {printable(kind)}"
