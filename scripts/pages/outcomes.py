"""docs/reference/exit-reasons.md: why a stage ends, and with which code."""

from __future__ import annotations

from finetune_trainer.config import ExitReason, Fault
from scripts.pages.markdown import paragraphs, table

HEAD = ("Reason", "Exit code", "Another attempt can help", "Whose fault")
_INTRODUCTION = """
Every stage, every attempt and `finetune run` itself end for one of these reasons. The reason stands in the
last event, in the line that `finetune run` ends with, and in the exit code.
[Troubleshooting](../troubleshooting.md) says for each what it means and what to do.
"""
_OTHER_CODES = """
Codes that are no reason: 1 faults in a job file, 2 wrong usage or a file that cannot be read, 130 ended by
Ctrl-C, 141 the reader of the output went away.
"""
_MOVES = {
    Fault.NONE: "nobody's",
    Fault.USER: "the user's: the job, its data or its rights",
    Fault.NODE: "the machine's",
    Fault.PLATFORM: "the platform's: storage, network, scheduling",
}


def render() -> str:
    """The page without its note."""
    rows = [
        (
            f"[`{reason}`](../troubleshooting.md#{reason.lower()})",
            str(reason.exit_code),
            "yes" if reason.retry else "no",
            _MOVES[reason.fault],
        )
        for reason in ExitReason
    ]
    lines = ["# Exit reasons", "", *paragraphs(_INTRODUCTION), *table(HEAD, rows), *paragraphs(_OTHER_CODES)]
    return "\n".join(lines)
