"""Write the pages of docs/reference from the code that they describe.

python -m scripts.reference           # write them
python -m scripts.reference --check   # fail where one is not what the code says
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.pages import commands, events, job, outcomes

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Made by `make reference` from the code: change that, not this page. -->\n\n"
PAGES: dict[str, Callable[[], str]] = {
    "job.md": job.render,
    "cli.md": commands.render,
    "events.md": events.render,
    "exit-reasons.md": outcomes.render,
}
"""File name to what renders it."""


def page(name: str) -> str:
    """The text of a page, ending in one line feed."""
    return NOTE + PAGES[name]().rstrip() + "\n"


def stale() -> list[str]:
    """Names of the pages that are not what the code says."""
    return [name for name in PAGES if not _is_current(FOLDER / name, page(name))]


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main() -> int:
    """Write or check; the exit status says whether all pages are current."""
    parser = argparse.ArgumentParser(description="Write the pages of docs/reference.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, fail where a page is not current"
    )
    if parser.parse_args().check:
        for name in (names := stale()):
            print(f"docs/reference/{name} is not what the code says: run 'make reference'")
        return 1 if names else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(page(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
