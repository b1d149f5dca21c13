"""Build `.venv` from the lock files, or do nothing where it is complete and up to date.

A hidden file in `.venv`, written last, names what the environment was built from. Without it, or where it
names something else, the environment is built from scratch: the downloads are cached, so that takes
seconds, and an interrupted build, a moved checkout or a new Python need no cases of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("requirements/uv.txt", "requirements/dev.txt", "scripts/environment.py")
STAMP = ".complete"

GIGABYTE = 10**9
UNPACKED = 6 * GIGABYTE
"""Bytes on the disk for all packages, their download included (uv unpacks while it downloads)."""
LINKED = GIGABYTE
"""Bytes for an environment whose packages lie unpacked in uv's cache (uv links the files)."""
HEARTBEAT = 20.0
"""Seconds between two lines about a long installation."""

# pip's settings for the package index -> the variables that tell uv the same.
INDEX_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}

# What pip and uv write when it is the machine's fault -> what to do about it.
REMEDIES = (
    (r"No space left on device|Disk quota exceeded", "the disk is full: about 6 GB are needed"),
    (r"[Hh]ash mismatch|DO NOT MATCH THE HASHES", "a download differs from the lock file: try another index"),
    (
        r"[Dd]ns error|name resolution|[Cc]onnection refused|error sending request|Network is unreachable"
        r"|[Tt]imed out|NewConnectionError|ProxyError|Failed to fetch|tunnel error",
        "the package index cannot be reached: check the network, or name a mirror in PIP_INDEX_URL",
    ),
)


class SetupError(Exception):
    """Set-up cannot go on; the message is one line for a person."""


def fingerprint(root: Path) -> str:
    """What an environment at `root/.venv` is built from, as a hash: lock files, package, Python and place."""
    package = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    settings = [package["build-system"], package["project"], package["tool"]["hatch"]]
    digest = hashlib.sha256(json.dumps([sys.version, str(root), settings]).encode())
    for name in SOURCES:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def uv_settings(pip_config: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Translate the index settings of `pip config list` for uv, which does not read pip's.

    Later lines win, as they do for pip; what `environment` says to uv already stays.
    """
    settings = {}
    for line in pip_config.splitlines():
        match = re.fullmatch(r"[^=]*\.([a-z-]+)='(.*)'", line.strip())
        variable = INDEX_SETTINGS.get(match[1]) if match else None
        if match and variable and variable not in environment:
            settings[variable] = " ".join(match[2].replace("\\n", " ").split())
    return settings


def remedy(output: str) -> str | None:
    """The cause and what to do, if the installer's output shows a fault of the machine; else None."""
    return next((text for pattern, text in REMEDIES if re.search(pattern, output)), None)


def require_space(root: Path, cache: Path) -> None:
    """Refuse early what would fail after minutes.

    Raises:
        SetupError: too little space on the disk.
    """
    unpacked = any((cache / "uv").glob("archive-*/*"))
    needed, free = LINKED if unpacked else UNPACKED, shutil.disk_usage(root).free
    if free < needed:
        needs = f"about {needed / GIGABYTE:.0f} GB are needed"
        raise SetupError(f"{free / GIGABYTE:.1f} GB are free in {root}, {needs}: make room")


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Let one set-up of this checkout run at a time.

    The installers inherit the lock: where this process was killed, the next one waits until they end too.
    """
    handle = os.open(root, os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: another set-up of this checkout is running, waiting for it", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(command: list[str], log: Path, environment: Mapping[str, str], what: str) -> None:
    """Run one installer; its output goes to the log, a line about it every HEARTBEAT seconds to the person.

    Raises:
        SetupError: it failed.
    """
    begin, free = time.monotonic(), shutil.disk_usage(log.parent).free
    with log.open("a", encoding="utf-8") as output:
        position = output.tell()
        print("+", *command, file=output, flush=True)
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            close_fds=False,
        ) as process:
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        status = process.wait(HEARTBEAT)
                        break
                    written = max(0, free - shutil.disk_usage(log.parent).free) / GIGABYTE
                    seconds = time.monotonic() - begin
                    print(f"setup: {what}, {seconds:.0f} s, {written:.1f} GB so far", flush=True)
            except BaseException:
                process.terminate()
                raise
    if status:
        said = log.read_text(encoding="utf-8", errors="replace")[position:]
        cause = remedy(said)
        if cause is None:
            print(*said.splitlines()[-15:], sep="\n", file=sys.stderr)
        raise SetupError(f"{cause or f'{what} failed'} (log: {log})")


def build(root: Path) -> None:
    """Make `root/.venv` from scratch.

    Raises:
        SetupError: it cannot be made.
        OSError: the folder cannot be written.
    """
    target = root / ".venv"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    stamp = fingerprint(root)
    require_space(root, cache)
    begin = time.monotonic()
    python_version = ".".join(map(str, sys.version_info[:3]))
    print(f"setup: building .venv with Python {python_version} (about 3 GB to download, once)", flush=True)
    # The mark goes first: files vanish in any order, and a half-removed environment must not pass for one.
    (target / STAMP).unlink(missing_ok=True)
    if target.exists():
        shutil.rmtree(target)
    target.mkdir()
    log = target / "setup.log"
    run([sys.executable, "-m", "venv", str(target)], log, os.environ, "making the environment")
    python, uv = str(target / "bin/python"), str(target / "bin/uv")

    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    locked = ["--no-deps", "--require-hashes"]
    run([*pip, "install", *locked, "-r", "requirements/uv.txt"], log, os.environ, "installing uv")
    config = subprocess.run(
        [*pip, "config", "list"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    ).stdout
    environment = {"UV_HTTP_TIMEOUT": "180", **os.environ, **uv_settings(config, os.environ)}
    lock = "requirements/dev.txt"
    # What has no wheel is built; the tools for that are pinned by the same lock.
    sync = [uv, "pip", "sync", "--python", python, "--require-hashes", "--build-constraints", lock, lock]
    run(sync, log, environment, "installing the packages")
    project = ["--no-deps", "--no-build-isolation", "--editable", "."]
    run([uv, "pip", "install", "--python", python, *project], log, environment, "installing the project")
    (target / STAMP).write_text(stamp, encoding="utf-8")
    print(f"setup: done in {time.monotonic() - begin:.0f} s", flush=True)


def complete(root: Path) -> bool:
    """Whether `root/.venv` is whole and what the lock files say."""
    try:
        return (root / ".venv" / STAMP).read_text(encoding="utf-8") == fingerprint(root)
    except FileNotFoundError:
        return False


def main() -> int:
    """Make the environment complete; the exit status says whether it is."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        if not complete(ROOT):
            with only_one(ROOT):
                if not complete(ROOT):
                    build(ROOT)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"setup: cannot build .venv: {remedy(str(error)) or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run the same command again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
