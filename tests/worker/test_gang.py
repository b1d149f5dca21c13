"""Whole gangs of real agents on loopback, around fake ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from finetune_trainer.config import (
    Checkpoint,
    ExitReason,
    Outcome,
    Retry,
    RunConfig,
    Sample,
    Stage,
    Step,
    Warned,
    Workers,
)

pytestmark = pytest.mark.slow
Config = Callable[..., RunConfig]
Gang = Any
"""See conftest.py."""
PAIR = Workers(replicas=2, gpus_per_worker=0)
SAMPLE = '{"event":"sample","prompt":"p","expected":"e","before":"b","after":"e"}'


def test_two_workers_train_and_worker_0_publishes(make_config: Config, gang: Gang) -> None:
    first, second = gang.start(make_config(workers=PAIR), publish=gang.stage("--event", SAMPLE))
    assert first.wait().reason is ExitReason.SUCCEEDED
    assert second.wait().reason is ExitReason.SUCCEEDED
    assert [event.step for event in first.of(Step)] == [1, 2, 3, 4, 5, 6]
    assert [event.name for event in first.of(Stage)] == ["preflight", "rendezvous", "train"]
    assert len(first.of(Sample)) == 1
    assert not second.of(Sample)
    assert {event.worker for event in second.events if not isinstance(event, Outcome)} == {1}
    environments = [
        json.loads((w.work / f"environment-{i}.json").read_text()) for i, w in enumerate((first, second))
    ]
    assert [e["RANK"] for e in environments] == ["0", "1"]
    assert {e["WORLD_SIZE"] for e in environments} == {"2"}
    assert {e["LOCAL_RANK"] for e in environments} == {"0"}
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments}) == 1
    assert {e["DS_ACCELERATOR"] for e in environments} == {"cpu"}
    assert "rank 1 is chatting" in (second.work / "logs/rank-1.log").read_text()
    assert json.loads(first.work.with_suffix(".termination").read_text())["reason"] == "Succeeded"


def test_several_ranks_in_a_worker(make_config: Config, gang: Gang) -> None:
    workers = Workers(replicas=2, gpus_per_worker=2)
    first, second = gang.start(make_config(workers=workers))
    assert first.wait().reason is ExitReason.SUCCEEDED
    assert second.wait().reason is ExitReason.SUCCEEDED
    environment = json.loads((second.work / "environment-3.json").read_text())
    assert (environment["LOCAL_RANK"], environment["GROUP_RANK"]) == ("1", "1")
    assert (environment["LOCAL_WORLD_SIZE"], environment["WORLD_SIZE"]) == ("2", "4")
    assert environment["HIP_FORCE_DEV_KERNARG"] == "1"


def test_an_absent_worker_is_named(make_config: Config, gang: Gang) -> None:
    config = make_config(workers=Workers(replicas=3, gpus_per_worker=0), retry=Retry(rendezvous_seconds=2))
    first, third = gang.start(config, indexes=[0, 2])
    outcome = first.wait()
    assert outcome.reason is ExitReason.RENDEZVOUS_TIMEOUT
    assert "absent: 1" in outcome.message
    assert third.wait().message == outcome.message


def test_an_absent_worker_0_is_named(make_config: Config, gang: Gang) -> None:
    config = make_config(workers=PAIR, retry=Retry(rendezvous_seconds=1))
    (second,) = gang.start(config, indexes=[1])
    outcome = second.wait()
    assert outcome.reason is ExitReason.RENDEZVOUS_TIMEOUT
    assert "could not reach worker 0" in outcome.message


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_the_cause_that_all_report(make_config: Config, gang: Gang, victim: int) -> None:
    workers = gang.start(make_config(workers=PAIR), ranks=gang.rank("--steps", "2000"))
    pids = [worker.rank_pid(index) for index, worker in enumerate(workers)]
    os.kill(pids[victim], signal.SIGKILL)
    began = time.monotonic()
    outcomes = [worker.wait(10) for worker in workers]
    assert time.monotonic() - began < 5
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].reason is ExitReason.INTERNAL
    assert outcomes[0].message == f"rank {victim} (worker {victim}) was killed by signal 9 (SIGKILL)"
    assert (outcomes[0].rank, outcomes[0].worker) == (victim, victim)
    assert outcomes[0].step > 0 or victim == 1
    assert not any(map(gang.alive, pids))


def test_an_echo_waits_for_its_cause(make_config: Config, gang: Gang) -> None:
    """Rank 0 notices the broken connection before rank 1, which ran out of memory, is dead."""
    ranks = gang.rank("--steps", "200", "--fault", "echo@0:3,oom@1:20")
    outcomes = [worker.wait() for worker in gang.start(make_config(workers=PAIR), ranks=ranks)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].reason is ExitReason.OUT_OF_MEMORY
    assert outcomes[0].rank == 1
    assert outcomes[0].traceback[0].startswith("Traceback")


def test_an_echo_alone_is_reported_in_the_end(make_config: Config, gang: Gang) -> None:
    ranks = gang.rank("--steps", "2000", "--fault", "echo@1:3")
    workers = gang.start(make_config(workers=PAIR), ranks=ranks, timing={"settle": 1.0})
    outcomes = [worker.wait() for worker in workers]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].reason is ExitReason.COLLECTIVE_TIMEOUT
    assert "Connection closed by peer" in outcomes[0].message


def test_what_a_rank_says_itself_counts(make_config: Config, gang: Gang) -> None:
    ranks = gang.rank("--steps", "2000", "--fault", "denied@1:3")
    outcomes = [worker.wait() for worker in gang.start(make_config(workers=PAIR), ranks=ranks)]
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0].reason, outcomes[0].message) == (ExitReason.STORAGE_DENIED, "no right")


def test_a_crash_after_the_final_word_is_no_failure(make_config: Config, gang: Gang) -> None:
    (worker,) = gang.start(make_config(), ranks=gang.rank("--fault", "late-crash@0:6"))
    assert worker.wait().reason is ExitReason.SUCCEEDED


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_agent_ends_the_others_and_its_own_ranks(
    make_config: Config, gang: Gang, victim: int
) -> None:
    workers = gang.start(make_config(workers=PAIR), ranks=gang.rank("--steps", "2000"))
    pids = [worker.rank_pid(index) for index, worker in enumerate(workers)]
    workers[victim].process.kill()
    outcome = workers[1 - victim].wait(10)
    assert f"worker {victim} was lost" in outcome.message
    assert outcome.worker == victim
    gang.until(lambda: not any(map(gang.alive, pids)), 5)


def test_a_frozen_agent_is_lost_after_a_while(make_config: Config, gang: Gang) -> None:
    timing = {"heartbeat": 0.2, "silent": 1.0, "lost": 2.0}
    workers = gang.start(make_config(workers=PAIR), ranks=gang.rank("--steps", "2000"), timing=timing)
    for index, worker in enumerate(workers):
        worker.rank_pid(index)
    workers[1].process.send_signal(signal.SIGSTOP)
    assert "worker 1 was lost" in workers[0].wait(10).message


def test_a_hung_rank_is_ended_with_its_stack(make_config: Config, gang: Gang) -> None:
    config = make_config(workers=PAIR, retry=Retry(hang_seconds=2))
    workers = gang.start(config, ranks=gang.rank("--steps", "2000", "--fault", "hang@1:3"))
    outcomes = [worker.wait() for worker in workers]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].reason is ExitReason.COLLECTIVE_TIMEOUT
    assert outcomes[0].message.startswith("rank 1 (worker 1) made no progress for 2 s")
    assert any(" in act" in line for line in outcomes[0].traceback)


def test_a_frozen_rank_is_named_without_a_stack(make_config: Config, gang: Gang) -> None:
    config = make_config(workers=PAIR, retry=Retry(hang_seconds=2))
    workers = gang.start(config, ranks=gang.rank("--steps", "2000"))
    os.kill(workers[1].rank_pid(1), signal.SIGSTOP)
    outcomes = [worker.wait() for worker in workers]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].message.startswith("rank 1 (worker 1) made no progress for 2 s")
    assert outcomes[0].traceback == []


def test_a_reader_that_does_not_read_holds_nothing_up(make_config: Config, gang: Gang) -> None:
    """As when `finetune run` is suspended: the pipe fills up, the gang trains on."""
    timing = {"heartbeat": 0.2, "silent": 1.0, "lost": 2.0}
    read_end, write_end = os.pipe()
    ranks = gang.rank("--steps", "3000", "--pace", "0.001")
    first, second = gang.start(make_config(workers=PAIR), ranks=ranks, timing=timing, stdout=write_end)
    os.close(write_end)
    gang.until(lambda: first.work.joinpath("logs/publish.log").exists(), 60)
    with os.fdopen(read_end, "rb") as events:
        assert events.read().count(b'"event":"step"') == 3000
    assert (first.process.wait(5), second.process.wait(5)) == (0, 0)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_worker_that_is_asked_to_stop_stops_all(make_config: Config, gang: Gang, asked: int) -> None:
    workers = gang.start(make_config(workers=PAIR), ranks=gang.rank("--steps", "2000"))
    for index, worker in enumerate(workers):
        worker.rank_pid(index)
    workers[asked].process.terminate()
    outcomes = [worker.wait(10) for worker in workers]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].reason is ExitReason.PREEMPTED
    (checkpoint,) = workers[0].of(Checkpoint)
    assert outcomes[0].step == checkpoint.step > 0


def test_stopping_during_the_roll_call(make_config: Config, gang: Gang) -> None:
    config = make_config(workers=Workers(replicas=3, gpus_per_worker=0))
    workers = gang.start(config, indexes=[0, 1])
    for worker in workers:
        gang.until(lambda worker=worker: len(worker.of(Stage)) == 2)
    time.sleep(1)
    workers[1].process.terminate()
    assert {worker.wait(10).reason for worker in workers} == {ExitReason.PREEMPTED}


def test_ranks_that_ignore_a_stop_are_killed_after_the_grace(make_config: Config, gang: Gang) -> None:
    ranks = gang.rank("--steps", "2000", "--ignore-term")
    (worker,) = gang.start(make_config(), ranks=ranks, arguments=["--grace", "1"])
    pid = worker.rank_pid(0)
    worker.process.terminate()
    outcome = worker.wait(15)
    assert outcome.reason is ExitReason.PREEMPTED
    assert outcome.message == "stopped after 1 s without reaching the end of a step"
    assert not gang.alive(pid)


def test_a_second_signal_ends_at_once(make_config: Config, gang: Gang) -> None:
    (worker,) = gang.start(make_config(), ranks=gang.rank("--steps", "2000", "--ignore-term"))
    pid = worker.rank_pid(0)
    worker.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    worker.process.send_signal(signal.SIGINT)
    assert worker.wait(5).reason is ExitReason.PREEMPTED
    assert not gang.alive(pid)


def test_a_failed_preflight_is_known_to_all(make_config: Config, gang: Gang) -> None:
    failing = gang.stage("--reason", "StorageDenied", "--message", "s3://bucket cannot be written")
    workers = gang.start(make_config(workers=PAIR), preflight={1: failing})
    outcomes = [worker.wait(15) for worker in workers]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].message == "s3://bucket cannot be written"
    assert outcomes[0].worker == 1


def test_a_failed_publication_is_the_outcome(make_config: Config, gang: Gang) -> None:
    publish = gang.stage("--reason", "StorageDenied", "--message", "no right to publish")
    (worker,) = gang.start(make_config(), publish=publish)
    assert worker.wait().reason is ExitReason.STORAGE_DENIED


def test_a_second_worker_with_the_same_index_is_refused(make_config: Config, gang: Gang) -> None:
    port = free()
    config = make_config(workers=Workers(replicas=3, gpus_per_worker=0))
    for worker in gang.start(config, indexes=[0, 1], port=port):
        gang.until(lambda worker=worker: len(worker.of(Stage)) == 2)
    time.sleep(1)
    (twin,) = gang.start(config, indexes=[1], port=port)
    outcome = twin.wait()
    assert outcome.reason is ExitReason.RENDEZVOUS_TIMEOUT
    assert "a worker with index 1 is present already" in outcome.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attempt": 2}, "it belongs to attempt 2, this is attempt 1"),
        ({"uid": "x"}, "it belongs to another run"),
    ],
)
def test_a_worker_of_another_run_is_refused(
    make_config: Config, gang: Gang, change: dict[str, object], reason: str
) -> None:
    port = free()
    gang.start(make_config(workers=PAIR), indexes=[0], port=port)
    (stranger,) = gang.start(make_config(workers=PAIR, **change), indexes=[1], port=port)
    assert reason in stranger.wait().message


def test_garbage_on_the_coordinator_port_does_no_harm(make_config: Config, gang: Gang) -> None:
    port = free()
    config = make_config(workers=PAIR)
    (first,) = gang.start(config, indexes=[0], port=port, timing={"hello": 1.0})
    gang.until(lambda: connects(port))
    strangers = []
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 200_000, b'{"kind":"alive"}\n', b"\xff\x00\n", b""):
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(noise)
        strangers.append(stranger)
    for stranger in strangers:  # each is shown the door, the silent one after a second
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1000) == b""
        stranger.close()
    (second,) = gang.start(config, indexes=[1], port=port)
    assert {first.wait().reason, second.wait().reason} == {ExitReason.SUCCEEDED}


def test_garbage_among_a_ranks_events_is_dropped(make_config: Config, gang: Gang) -> None:
    (worker,) = gang.start(make_config(), ranks=gang.rank("--fault", "garbage@0:3"))
    assert worker.wait().reason is ExitReason.SUCCEEDED
    assert [event.message for event in worker.of(Warned)] == ["still here"]
    assert "no event" in worker.errors


def test_a_port_in_use_is_one_clear_line(make_config: Config, gang: Gang) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (worker,) = gang.start(make_config(), arguments=["--port", str(port)])
        outcome = worker.wait()
        (other,) = gang.start(make_config(workers=PAIR), indexes=[0], port=port)
        assert f"127.0.0.1:{port} for the other workers" in other.wait().message
    assert outcome.reason is ExitReason.PREFLIGHT_FAILED
    assert outcome.message == f"cannot listen on 0.0.0.0:{port} for metrics: Address already in use"
    assert "Traceback" not in worker.errors


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True
