"""Pieces of Markdown as lists of lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

WIDTH = 120


def paragraphs(text: str) -> list[str]:
    """Text wrapped, each of its paragraphs followed by an empty line."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        wrapped = textwrap.wrap(
            " ".join(paragraph.split()), WIDTH, break_long_words=False, break_on_hyphens=False
        )
        lines += [*wrapped, ""]
    return lines


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table, followed by an empty line."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]
