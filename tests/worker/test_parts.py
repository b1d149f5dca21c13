"""The agent's small pure parts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune_trainer.config import ExitReason, Outcome, RunConfig, RunError, Workers
from finetune_trainer.processors import available_cores
from finetune_trainer.worker import termination
from finetune_trainer.worker.channel import Endpoint
from finetune_trainer.worker.devices import check_gpus, visible_gpus
from finetune_trainer.worker.environment import rank_environment
from finetune_trainer.worker.hang import HangWatch
from finetune_trainer.worker.memory import oom_kills
from finetune_trainer.worker.messages import Start
from finetune_trainer.worker.process import tail


@pytest.mark.parametrize(
    ("signs", "now", "stalled"),
    [
        ([], 1000.0, []),
        ([(0, 1, 0.0)], 10.0, []),
        ([(0, 1, 0.0)], 10.1, [0]),
        ([(0, 1, 0.0), (0, 1, 9.0)], 10.1, [0]),
        ([(0, 1, 0.0), (0, 2, 9.0)], 10.1, []),
        ([(0, 2, 0.0), (0, 1, 9.0)], 10.1, []),
        ([(0, 1, 3.0), (1, 1, 2.0), (2, 1, 19.0)], 20.0, [1, 0]),
        ([(0, 1, 0.0), (0, "ended", 0.0)], 20.0, []),
    ],
)
def test_hang_watch(signs: list[tuple[int, object, float]], now: float, stalled: list[int]) -> None:
    watch = HangWatch(10.0)
    for rank, mark, at in signs:
        if mark == "ended":
            watch.ended(rank)
        else:
            watch.sign(rank, mark, at)
    assert watch.stalled(now) == stalled


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("short", ["a", "b"]),
        ("x" * 5000, ["y" * 5000] * 3),
        ("学" * 5000, ["习" * 200] * 40),
        ("\x01" * 5000, []),
        ("m", [str(number) * 20 for number in range(500)]),
    ],
)
def test_a_termination_message_fits(message: str, lines: list[str], tmp_path: Path) -> None:
    outcome = Outcome(reason=ExitReason.INTERNAL, message=message, hint=message, traceback=lines, rank=3)
    path = tmp_path / "log"
    termination.write(outcome, {"FINETUNE_TERMINATION_LOG": str(path)})
    data = path.read_bytes()
    assert len(data) <= 4096
    read = Outcome.model_validate_json(data)
    assert read.rank == 3
    assert message.startswith(read.message)
    if lines and len(lines[-1]) < 100:
        assert read.traceback[-1] == lines[-1]


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:29500", "127.0.0.1", 29500, True),
        ("[::1]:1", "::1", 1, True),
        ("job-0.job.default.svc:29500", "job-0.job.default.svc", 29500, False),
    ],
)
def test_endpoint(text: str, host: str, port: int, loopback: bool) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port, endpoint.is_loopback) == (host, port, loopback)
    assert str(endpoint) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536", "host:-1"])
def test_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        Endpoint.parse(text)


def test_rank_environment(make_config: Callable[..., RunConfig]) -> None:
    config = make_config(workers=Workers(replicas=2, gpus_per_worker=4), attempt=3)
    start = Start(master_address="job-0.job", master_port=4321)
    base = {"OMP_NUM_THREADS": "7", "RANK": "99", "PATH": "/bin"}
    environment = rank_environment(base, config, worker=1, local_rank=2, start=start, cores=32)
    assert environment.items() >= {
        ("RANK", "6"),
        ("LOCAL_RANK", "2"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("GROUP_RANK", "1"),
        ("MASTER_ADDR", "job-0.job"),
        ("MASTER_PORT", "4321"),
        ("TORCHELASTIC_RUN_ID", "demo-1234-3"),
        ("OMP_NUM_THREADS", "7"),
        ("PATH", "/bin"),
        ("HIP_FORCE_DEV_KERNARG", "1"),
    }
    assert environment.keys().isdisjoint({"DS_ACCELERATOR", "GLOO_SOCKET_IFNAME"})


def test_rank_environment_on_one_cpu_machine(make_config: Callable[..., RunConfig]) -> None:
    start = Start(master_address="127.0.0.1", master_port=4321)
    environment = rank_environment({}, make_config(), worker=0, local_rank=0, start=start, cores=6)
    assert environment.items() >= {
        ("DS_ACCELERATOR", "cpu"),
        ("OMP_NUM_THREADS", "6"),
        ("GLOO_SOCKET_IFNAME", "lo"),
    }
    assert "HIP_FORCE_DEV_KERNARG" not in environment


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", None), ("150000 100000", 1), ("50000 100000", 1), ("", None)]
)
def test_cores_of_a_container(quota: str, cores: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert available_cores(tmp_path) == (cores or available_cores(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        ({"proc/vmstat": "oom_kill_other 9\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom 5\noom_kill 3\n"}, 3),
        (
            {
                "proc/self/cgroup": "1:name=systemd:/x\n0::/user/one\n",
                "sys/fs/cgroup/user/one/memory.events": "oom_kill 4\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "0::/../elsewhere\n", "sys/fs/cgroup/memory.events": "oom_kill 1\n"}, 1),
    ],
)
def test_oom_kills(files: dict[str, str], count: int, tmp_path: Path) -> None:
    lay(tmp_path, files)
    assert oom_kills(tmp_path) == count


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        ({"sys/class/drm/renderD128/device/vendor": "0x1002\n"}, 0),
        ({"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x1002\n"}, 1),
        ({"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x8086\n"}, 0),
        ({"dev/dri/renderD128": "", "dev/dri/card0": ""}, 0),
        ({"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""}, 2),
    ],
)
def test_visible_gpus(files: dict[str, str], count: int, tmp_path: Path) -> None:
    lay(tmp_path, files)
    assert visible_gpus(tmp_path) == count


def test_too_few_gpus(make_config: Callable[..., RunConfig]) -> None:
    config = make_config(workers=Workers(replicas=2, gpus_per_worker=8))
    check_gpus(config, 8)
    with pytest.raises(RunError, match="wants 8 GPUs a worker, and 7 can be opened here"):
        check_gpus(config, 7)


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_bytes(b"x" * 200_000 + b"\n10%\r50%\rdone\n\x1b[31mred\x1b[0m\n\n\xff\nlast")
    assert tail(log)[-4:] == ["done", "red", "\ufffd", "last"]


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.slow
def test_the_agent_stays_small() -> None:
    """No torch, no storage client in the process that lives as long as the training."""
    code = (
        "import json, sys, finetune_trainer.worker.command\n"
        "status = open('/proc/self/status').read().split('VmRSS:')[1].split()[0]\n"
        "print(json.dumps([int(status), [m for m in ('torch', 'obstore', 'numpy') if m in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    kilobytes, heavy = json.loads(done.stdout)
    assert heavy == []
    assert kilobytes < 60_000
