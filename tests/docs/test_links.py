"""Every link within the project leads somewhere, and every page can be found."""

from __future__ import annotations

import posixpath

import pytest

from tests.docs.markdown import NAMES, ROOT, anchors, links


def test_there_are_pages() -> None:
    assert {"README.md", "CHANGES.md", "docs/architecture.md", "docs/reference/job.md"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    broken = []
    for link in links(name):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
        if not (ROOT / target).exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in NAMES:
            continue
        reached.add(name)
        paths = (link.partition("#")[0] for link in links(name) if "://" not in link)
        waiting += [
            posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in paths if path
        ]
    assert {name for name in NAMES if name == "CHANGES.md" or name.startswith("docs/")} <= reached
