"""What holds for all tests: they touch neither the network nor the user's own state, and CI skips none."""

from __future__ import annotations

import ipaddress
import os
import sys
import tempfile
from collections.abc import Generator
from typing import Any

import pytest

# Set before any library is imported: many read these only then. Child processes inherit them.
_STATE = tempfile.TemporaryDirectory(prefix="finetune-tests-", ignore_cleanup_errors=True)
_NOWHERE = "http://127.0.0.1:9"
os.environ.update(
    DS_ACCELERATOR="cpu",
    HF_ENDPOINT=_NOWHERE,
    HF_HOME=f"{_STATE.name}/huggingface",
    MODELSCOPE_CACHE=f"{_STATE.name}/modelscope",
    MODELSCOPE_ENDPOINT=_NOWHERE,
    XDG_STATE_HOME=f"{_STATE.name}/state",
    TOKENIZERS_PARALLELISM="false",
)
for _name in [*os.environ]:
    if _name.startswith(("AWS_", "HF_TOKEN", "FINETUNE_SECRETS", "FINETUNE_CLAIMS")):
        del os.environ[_name]

_IN_CI = os.environ.get("CI", "").lower() == "true"


def _stay_on_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail at once where a test would reach out, instead of passing only where there is a network."""
    if event != "socket.connect":
        return
    address = arguments[1]
    host = address[0] if isinstance(address, tuple) else None
    if not isinstance(host, str) or host in {"", "localhost"}:
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise RuntimeError(f"a test connects to {host}: tests stay on this machine")


sys.addaudithook(_stay_on_loopback)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: what they find, nobody should wait for."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped in CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that was skipped has failed."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI a module that was skipped has failed."""
    report = yield
    _refuse_skip(report)
    return report
