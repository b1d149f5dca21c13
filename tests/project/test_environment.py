"""Set-up: when it is due, what it tells uv, what it tells a person, and that one runs at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from scripts import environment
from scripts.environment import (
    SetupError,
    complete,
    fingerprint,
    only_one,
    remedy,
    require_space,
    run,
    uv_settings,
)

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that an environment is built from, and a finished environment."""
    for name in (*environment.SOURCES, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(environment.ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / environment.STAMP).write_text(fingerprint(tmp_path))
    return tmp_path


def test_a_finished_environment_is_left_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", checkout)
    monkeypatch.setattr(environment, "build", lambda root: pytest.fail("built again"))
    assert environment.main() == 0


@pytest.mark.parametrize("name", environment.SOURCES)
def test_changed_files_make_it_due(checkout: Path, name: str) -> None:
    (checkout / name).write_text("changed")
    assert not complete(checkout)


@pytest.mark.parametrize(
    ("old", "new", "due"),
    [('"rich>=14"', '"rich>=15"', True), ("line-length = 110", "line-length = 111", False)],
)
def test_of_the_project_only_what_is_installed_counts(checkout: Path, old: str, new: str, due: bool) -> None:
    project = checkout / "pyproject.toml"
    changed = project.read_text().replace(old, new)
    assert changed != project.read_text()
    project.write_text(changed)
    assert complete(checkout) is not due


def test_a_moved_checkout_is_due(checkout: Path) -> None:
    assert not complete(checkout.rename(checkout.with_name("elsewhere")))


def test_an_interrupted_set_up_is_due(checkout: Path) -> None:
    (checkout / ".venv" / environment.STAMP).unlink()
    assert not complete(checkout)


def test_pip_s_index_settings_are_translated() -> None:
    config = """\
global.cert='/etc/ssl/corporate.pem'
global.extra-index-url='\\nhttps://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://old.example/simple'
global.no-cache-dir='true'
:env:.index-url='https://mirror.example/simple?x=1'
"""
    assert uv_settings(config, {}) == {
        "SSL_CERT_FILE": "/etc/ssl/corporate.pem",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple?x=1",
    }


def test_what_uv_was_told_stays() -> None:
    told = {"UV_DEFAULT_INDEX": "https://mine.example"}
    assert uv_settings("global.index-url='https://old.example'", told) == {}


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError(...): Temporary failure in name resolution", "index cannot be reached"),
        (
            "error: Failed to fetch: `https://mirror.example`\n  Caused by: dns error",
            "index cannot be reached",
        ),
        ("error: Hash mismatch for `rich==15.0.0`", "differs from the lock file"),
    ],
)
def test_faults_of_the_machine_are_named(output: str, part: str) -> None:
    assert part in (remedy(output) or "")


def test_other_faults_are_not_explained_away() -> None:
    assert remedy("error: invalid syntax") is None


@pytest.mark.parametrize(
    ("cached", "gigabytes", "enough"), [(0, 7, True), (0, 3, False), (1, 3, True), (1, 0.5, False)]
)
def test_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, gigabytes: float, enough: bool
) -> None:
    if cached:
        (tmp_path / "uv/archive-v0/abc").mkdir(parents=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, int(gigabytes * 10**9)))
    if enough:
        require_space(tmp_path, tmp_path)
    else:
        with pytest.raises(SetupError, match=r"GB are free in .*make room"):
            require_space(tmp_path, tmp_path)


def test_a_failed_installer_shows_its_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "print(*range(100), sep='\\n'); raise SystemExit(3)"]
    with pytest.raises(SetupError, match=f"installing x failed .log: {log}"):
        run(command, log, os.environ, "installing x")
    assert capsys.readouterr().err.split() == [str(number) for number in range(85, 100)]


def test_a_long_installation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "HEARTBEAT", 0.05)
    run([sys.executable, "-c", "import time; time.sleep(0.3)"], tmp_path / "log", os.environ, "installing x")
    assert "setup: installing x, 0 s" in capsys.readouterr().out


def test_the_lock_outlives_its_holder_in_an_installer(tmp_path: Path) -> None:
    """A killed set-up's installer still writes: the next set-up has to wait for it."""
    with only_one(tmp_path):
        installer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        installer.communicate()
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)
