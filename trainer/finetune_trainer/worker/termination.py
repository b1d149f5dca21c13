"""The termination message: the outcome in the few bytes that Kubernetes keeps of a pod."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from finetune_trainer.config import Outcome

LIMIT = 4096
"""Bytes of a container's termination message that the kubelet keeps."""
_MESSAGE_LIMIT = 1000
_LINE_LIMIT = 300


def shorten(outcome: Outcome, limit: int = LIMIT) -> Outcome:
    """The outcome with as much of its message and traceback as fits into `limit` bytes of JSON.

    The last lines of a traceback say most, so the first ones go first.
    """
    lines = [line[:_LINE_LIMIT] for line in outcome.traceback]
    short = outcome.model_copy(
        update={
            "message": outcome.message[:_MESSAGE_LIMIT],
            "hint": outcome.hint[:_MESSAGE_LIMIT],
            "traceback": lines,
        }
    )
    while lines and _size(short) > limit:
        lines = lines[1:]
        short = short.model_copy(update={"traceback": lines})
    while _size(short) > limit:  # scripts of several bytes a character
        short = short.model_copy(
            update={"message": short.message[: len(short.message) // 2], "hint": short.hint[:_LINE_LIMIT]}
        )
    return short


def _size(outcome: Outcome) -> int:
    return len(outcome.model_dump_json().encode())


def write(outcome: Outcome, environment: Mapping[str, str] = os.environ) -> None:
    """Leave the outcome as the pod's termination message, where there is a place for it.

    The place is the file named by `FINETUNE_TERMINATION_LOG`, else `/dev/termination-log`
    where it exists.

    Raises:
        OSError: the place exists and cannot be written.
    """
    named = environment.get("FINETUNE_TERMINATION_LOG")
    path = Path(named or "/dev/termination-log")
    if named or path.exists():
        path.write_text(shorten(outcome).model_dump_json(), encoding="utf-8")
