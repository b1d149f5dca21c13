"""The project's pages, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda page: page.relative_to(ROOT).as_posix()
)
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line that it begins in."""

    language: str
    text: str
    line: int


def read(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages."""
    text = read(name)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def prose(name: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", read(name))


def links(name: str) -> list[str]:
    """Where a page's links lead to."""
    return _LINK.findall(prose(name))


def anchors(name: str) -> set[str]:
    """The anchors that renderers of Markdown give to the headings of a page."""
    headings = _HEADING.findall(prose(name))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
