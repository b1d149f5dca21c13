"""Check what no linter knows: lock files that fit, modules of a readable length, nothing of one machine."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
MODULE_LINES = 400
PACKAGES = ("operator", "trainer")
SKIPPED = frozenset({"__pycache__", "dist", "runs"})

# Brackets keep these patterns from matching this file.
MACHINE = (
    r"(?<![\w.])/[r]oot/|pypi[.]org|python[h]osted|registry[.]npmjs|proxy[.]golang|crates[.]io|deb[.]debian"
)


@dataclass
class Pin:
    """One package of a lock file."""

    name: str
    version: str
    hashes: int = 0
    wanted_by: set[str] = field(default_factory=set)


def parse_lock(text: str) -> tuple[list[Pin], list[str]]:
    """The pins of a lock file, and the lines that are none of a lock file's."""
    pins: list[Pin] = []
    strange = []
    for line in text.splitlines():
        if match := re.match(r"([\w.-]+)==([^\s;]+)", line):
            pins.append(Pin(canonicalize_name(match[1]), match[2]))
        elif line.startswith("    --hash=sha256:") and pins:
            pins[-1].hashes += 1
        elif line.startswith("    #") and pins:
            pins[-1].wanted_by.add(line.strip("# ").removeprefix("via").strip())
        elif line and not line.startswith("#"):
            strange.append(line)
    return pins, strange


def read_requirements(text: str) -> list[Requirement]:
    """The requirements of a `.in` file, without its options and comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-")]


def lock_faults(
    lock: str, sources: dict[str, list[Requirement]], excluded: list[Requirement]
) -> Iterator[str]:
    """Where a lock file does not say what its sources ask for.

    Args:
        lock: the lock file's text.
        sources: what each source asks for, by the source's name in the lock file's comments.
        excluded: what must not be in it.
    """
    pins, strange = parse_lock(lock)
    for line in strange:
        yield f"holds {line!r}: only pins, hashes and comments belong here"
    versions = defaultdict(list)
    for pin in pins:
        versions[pin.name].append(pin.version)
        if not pin.hashes:
            yield f"{pin.name} has no hash"
    for source, requirements in sources.items():
        asked = {canonicalize_name(requirement.name): requirement for requirement in requirements}
        for name in sorted({pin.name for pin in pins if source in pin.wanted_by} - set(asked)):
            yield f"{name} is locked for {source}, which does not ask for it"
        for name, requirement in asked.items():
            if not versions[name]:
                yield f"{name} is missing, {source} asks for it"
            for version in versions[name]:
                if not requirement.specifier.contains(version, prereleases=True):
                    yield f"{name} {version} is not what {source} asks for: {requirement}"
    for requirement in excluded:
        if versions[canonicalize_name(requirement.name)]:
            yield f"{requirement.name} is locked though requirements/excluded.txt names it"


def project_lock_faults(root: Path) -> Iterator[str]:
    """Faults of the project's lock files, each with the file's name."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = root / "requirements"
    asked = [*project["dependencies"], *project["optional-dependencies"]["trainer"]]
    tools = {
        path: read_requirements((folder / path).read_text(encoding="utf-8")) for path in ("dev.in", "uv.in")
    }
    excluded = read_requirements((folder / "excluded.txt").read_text(encoding="utf-8"))
    locks = {
        "dev.txt": {
            f"{project['name']} (pyproject.toml)": [Requirement(line) for line in asked],
            "-r requirements/dev.in": tools["dev.in"],
        },
        "uv.txt": {"-r requirements/uv.in": tools["uv.in"]},
    }
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in locks}
    for name, sources in locks.items():
        for fault in lock_faults(texts[name], sources, excluded):
            yield f"requirements/{name}: {fault}; run 'make lock'"
    uv = {
        name: {pin.version for pin in parse_lock(text)[0] if pin.name == "uv"} for name, text in texts.items()
    }
    if uv["dev.txt"] != uv["uv.txt"]:
        yield f"requirements: two versions of uv are locked ({uv}); run 'make lock'"


def files(root: Path) -> Iterator[Path]:
    """The checkout's files, without hidden folders and what runs leave behind."""
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name for name in sorted(folders) if name == ".ci" or (name[0] != "." and name not in SKIPPED)
        ]
        yield from (Path(folder, name) for name in sorted(names))


def machine_faults(root: Path) -> Iterator[str]:
    """Lines that only mean something on one machine: its folders, its package servers."""
    pattern = re.compile(f"{re.escape(str(root))}/|{MACHINE}".encode())
    for path in files(root):
        if path.is_relative_to(root / "tests" / "cases") or not path.is_file():
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if match := pattern.search(line):
                place = f"{path.relative_to(root)}:{number}"
                yield f"{place}: {match[0].decode()!r} means nothing on another machine"


def length_faults(root: Path) -> Iterator[str]:
    """Modules too long to be about one subject."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            length = len(path.read_text(encoding="utf-8").splitlines())
            if length > MODULE_LINES:
                yield f"{path.relative_to(root)}: {length} lines, at most {MODULE_LINES} are wanted: split it"


def main() -> int:
    """Print every fault; the exit status says whether there is one."""
    faults = [*project_lock_faults(ROOT), *length_faults(ROOT), *machine_faults(ROOT)]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
