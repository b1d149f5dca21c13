"""A skipped test is a failure in CI, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SKIPS = {
    "mark": "import pytest\n@pytest.mark.skip(reason='no moon')\ndef test_it(): pass\n",
    "call": "import pytest\ndef test_it(): pytest.skip('no moon')\n",
    "fixture": "import pytest\n@pytest.fixture\ndef f(): pytest.skip('no moon')\ndef test_it(f): pass\n",
    "module": "import pytest\npytest.skip('no moon', allow_module_level=True)\n",
}
XFAIL = "import pytest\n@pytest.mark.xfail(reason='no moon', strict=True)\ndef test_it(): assert False\n"


def run_pytest(folder: Path, test: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(folder)],
        env={**os.environ, "CI": ci},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("kind", SKIPS)
def test_a_skip_fails_in_ci_and_says_why(tmp_path: Path, kind: str) -> None:
    ended = run_pytest(tmp_path, SKIPS[kind], "true")
    assert ended.returncode != 0
    assert "nothing may be skipped in CI" in ended.stdout
    assert "no moon" in ended.stdout


def test_a_skip_is_only_named_elsewhere(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, SKIPS["call"] + "def test_that(): pass\n", "")
    assert ended.returncode == 0
    assert "no moon" in ended.stdout


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, XFAIL, "true").returncode == 0


def test_the_guard_keeps_tests_on_this_machine(tmp_path: Path) -> None:
    # 192.0.2.1 belongs to nobody; the guard stops the call before a packet is sent.
    test = "import socket\ndef test_it(): socket.create_connection(('192.0.2.1', 80), 1)\n"
    ended = run_pytest(tmp_path, test, "")
    assert ended.returncode == 1
    assert "a test connects to 192.0.2.1" in ended.stdout
