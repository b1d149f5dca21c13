from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.storage import Output, open_output, open_source
from finetune_trainer.storage.bucket import CHUNK
from tests.fixtures.faults import Fault, FaultyProxy, faulty_proxy
from tests.fixtures.folders import fill, tree
from tests.fixtures.processes import free_ports
from tests.fixtures.rclone import rclone
from tests.fixtures.seaweedfs import S3Server

pytestmark = pytest.mark.slow

PUBLISH = """
import pathlib, sys
from finetune_trainer.storage import open_output
open_output(sys.argv[1]).publish(pathlib.Path(sys.argv[2]), "p")
"""


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.plain_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.fixture
def uri(s3: S3Server, tmp_path: Path) -> str:
    return f"s3://{s3.bucket}/{tmp_path.name}"


@pytest.fixture
def out(proxy: FaultyProxy, uri: str) -> Output:
    return open_output(uri, patience=20)


def test_an_outage_that_passes_is_not_noticed(proxy: FaultyProxy, out: Output, tmp_path: Path) -> None:
    proxy.faults += [
        Fault("refuse", 2, "PUT", "small"),
        Fault("lose", 1, "PUT", "partNumber=2"),
        Fault("refuse", 1, "POST", "uploads"),
        Fault("refuse", 2, "GET", "large"),
        Fault("lose", 1, "GET", "large"),
    ]
    folder = fill(tmp_path / "work", {"small": "1", "large": b"x" * (2 * CHUNK)})
    out.publish(folder, "p")
    assert tree(out.fetch("p", tmp_path / "t")) == ["large", "small"]
    assert not any(fault.times for fault in proxy.faults)


def test_an_outage_that_stays_ends_within_its_patience(proxy: FaultyProxy, uri: str, tmp_path: Path) -> None:
    proxy.faults.append(Fault("refuse", 10**6))
    begin = time.monotonic()
    with pytest.raises(RunError, match=r"is unavailable for .*SlowDown \(HTTP 503\)") as caught:
        open_output(uri, patience=1).publish(fill(tmp_path / "work", {"a": "1"}), "p")
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
    assert time.monotonic() - begin < 15


def test_nobody_listens(s3: S3Server, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(RunError, match="the connection was refused") as caught:
        open_source(uri, purpose="data", patience=1).entries()
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE


def test_a_lost_answer_to_the_manifest_is_still_our_publication(
    proxy: FaultyProxy, out: Output, tmp_path: Path
) -> None:
    proxy.faults.append(Fault("lose", 1, "PUT", "manifest.json"))
    manifest = out.publish(fill(tmp_path / "work", {"a": "1"}), "p", {"step": 1})
    assert out.manifest("p") == manifest
    assert sum("PUT" in line and "manifest.json" in line for line in proxy.seen) == 2


def test_bytes_that_change_on_the_way_are_not_published(
    proxy: FaultyProxy, out: Output, tmp_path: Path
) -> None:
    proxy.faults.append(Fault("corrupt", 1, "PUT", "weights"))
    with pytest.raises(RunError) as caught:
        out.publish(fill(tmp_path / "work", {"weights": "123"}), "p")
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
    assert out.manifest("p") is None


def test_a_server_without_conditional_writes(proxy: FaultyProxy, uri: str, tmp_path: Path) -> None:
    proxy.faults.append(Fault("refuse", 10**6, "PUT", "manifest.json", header="If-None-Match", status=501))
    out = open_output(uri, patience=1)
    folder = fill(tmp_path / "work", {"a": "1"})
    manifest = out.publish(folder, "p")
    assert out.manifest("p") == manifest
    with pytest.raises(RunError, match="published already"):
        out.publish(fill(folder, {"a": "2"}), "p")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_upload_is_not_published_and_can_be_repeated(
    proxy: FaultyProxy, out: Output, uri: str, tmp_path: Path, stop: int
) -> None:
    folder = fill(tmp_path / "work", {f"{i:02}": bytes([i]) * (3 * CHUNK) for i in range(4)})
    child = subprocess.Popen([sys.executable, "-c", PUBLISH, uri, str(folder)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while sum("partNumber" in line for line in proxy.seen) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(stop)
        assert child.wait(30) != 0
    finally:
        child.kill()
        child.wait()
    assert out.manifest("p") is None
    assert out.published("") == []
    if stop == signal.SIGINT:  # an orderly end leaves no parts behind that nobody sees and somebody pays
        begun = sum(line.startswith("POST") and "?uploads" in line for line in proxy.seen)
        ended = sum("uploadId" in line and line.startswith(("DELETE", "POST")) for line in proxy.seen)
        assert begun == ended > 0
    out.publish(folder, "p")
    assert out.published("") == ["p"]


def test_a_full_disk_names_the_path(proxy: FaultyProxy, out: Output, tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"large": b"x" * (2 * CHUNK)})
    out.publish(folder, "p")
    calls: dict[str, Callable[[], object]] = {
        "t/large": lambda: out.fetch("p", tmp_path / "t"),
        "out/.p.": lambda: open_output(f"file://{tmp_path}/out").publish(folder, "p"),
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for path, call in calls.items():
        resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK, hard))
        try:
            with pytest.raises(RunError, match=r"a limit is hit \(\d+ MiB free\)") as caught:
                call()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
        assert f"{tmp_path}/{path}" in caught.value.message
    assert tree(tmp_path / "t") == [".large.part"]
    assert tree(tmp_path / "out") == []


def test_a_server_that_ignores_conditions_ends_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server").mkdir()
    with rclone(tmp_path / "server") as s3:
        for key, value in s3.environment().items():
            monkeypatch.setenv(key, value)
        out = open_output(f"s3://{s3.bucket}/adapters")
        out.check_writable()
        small = fill(tmp_path / "small", {"a": "1", "b": "2"})
        with ThreadPoolExecutor(8) as pool:
            manifests = list(pool.map(lambda _: out.publish(small, "uid/small"), range(8)))
        assert len({manifest.sha256 for manifest in manifests}) == 1
        assert tree(out.fetch("uid/small", tmp_path / "t0")) == ["a", "b"]

        folder = fill(tmp_path / "work", {"a": "1", "deep/large": b"x" * (2 * CHUNK + 1)})
        out.publish(folder, "uid/p")
        assert tree(out.fetch("uid/p", tmp_path / "t")) == ["a", "deep/large"]
        with pytest.raises(RunError, match="published already"):
            out.publish(fill(tmp_path / "other", {"a": "2"}), "uid/p")
        source = open_source(f"s3://{s3.bucket}/adapters/uid/p", purpose="data")
        with source.open("deep/large") as file:
            assert len(file.read()) == 2 * CHUNK + 1
        out.remove("uid/p")
        assert out.published("uid") == ["small"]
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(RunError) as caught:
            open_output(f"s3://{s3.bucket}/x").check_writable()
        assert caught.value.reason is ExitReason.STORAGE_DENIED
