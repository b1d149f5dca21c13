"""`finetune run` with real agents and a real output folder, around fake stages and ranks."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from finetune_trainer.config import Artifact, Outcome, Sample, Step, parse_event

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
FAKES = HERE.parent / "worker" / "fakes"
JOB = """\
apiVersion: finetune.dev/v1alpha1
kind: FineTuneJob
metadata: {{name: demo}}
spec:
  model: {{uri: "file:///models/small"}}
  dataset:
    sources: [{{uri: "file://./rows.jsonl"}}]
  workers: {{replicas: {replicas}, gpusPerWorker: {gpus}}}
  output: {{uri: "file://{output}"}}
"""
PREPARED = json.dumps(
    {
        "event": "prepared",
        "rows": 10,
        "tokens": 900,
        "trained_token_share": 0.5,
        "splits": {"train": 8, "validation": 1, "test": 1},
    }
)
SAMPLE = json.dumps(
    {"event": "sample", "prompt": "Who?", "expected": "Ada", "before": "Bob\nBob", "after": "Ada"}
)


# The fakes need the standard library only, and start the faster for it.
BARE_PYTHON = [sys.executable, "-P", "-S"]


class Runs:
    """Starts `finetune run` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.output = folder / "output"
        self.job = folder / "job.yaml"
        self._processes: list[subprocess.Popen[str]] = []

    def write_job(self, replicas: int = 1, gpus: int = 0) -> None:
        self.job.write_text(JOB.format(replicas=replicas, gpus=gpus, output=self.output))

    def command(
        self,
        *arguments: str,
        ranks: str = "",
        prepare: str = "",
        publish: str = "",
        survey: str = "",
    ) -> list[str]:
        stage = [*BARE_PYTHON, str(FAKES / "stage.py")]
        artifact = json.dumps(
            {
                "event": "artifact",
                "uri": f"file://{self.output}/uid/attempt-1/adapter",
                "bytes": 4_700_000,
                "manifest_sha256": "00",
                "serve_command": "serve",
                "test_loss_before": 4.28,
                "test_loss_after": 0.04,
            }
        )
        agent = {
            "preflight": stage,
            "rank": [*BARE_PYTHON, str(FAKES / "rank.py"), *ranks.split()],
            "publish": [*stage, "--event", SAMPLE, "--event", artifact, *publish.split()],
        }
        programs = {
            "prepare": [*stage, "--event", PREPARED, *prepare.split()],
            "agent": [sys.executable, str(FAKES / "agent.py"), json.dumps(agent), "{}"],
        }
        if survey:
            programs["survey"] = [*BARE_PYTHON, "-c", survey]
        return [sys.executable, str(HERE / "fakes/run.py"), json.dumps(programs), str(self.job), *arguments]

    def start(self, *arguments: str, **programs: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(*arguments, **programs),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(self, *arguments: str, **programs: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **programs)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"FINETUNE_STATE": str(self.state)}

    def pids(self, count: int) -> list[int]:
        """Process ids of the ranks, once each has made a step."""
        until(lambda: len(list(self.state.glob("runs/*/attempt-*/worker-*/heartbeat-*"))) == count)
        return [int(path.read_text()) for path in self.state.glob("runs/*/attempt-*/worker-*/pid-*")]

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    runs.write_job()
    yield runs
    runs.close()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_in_a_pipe(runs: Runs) -> None:
    code, out, err = runs.run()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "data: 10 rows (train 8, validation 1, test 1); 900 tokens, 50% of them trained"
    step = "step 1/6  loss 2.000  lr 1.0e-04  grad 0.50  mem 1.0 GB  50 tok/s  ETA 0s"
    assert step in lines
    assert "test loss   4.280 before, 0.040 after (107.0 times lower)" in lines
    question = lines.index("  question  Who?")
    assert lines[question + 1 : question + 4] == ["  expected  Ada", "  before    Bob Bob", "  after     Ada"]
    folder = f"{runs.output}/uid/attempt-1/adapter"
    assert lines[-2] == f"adapter     {folder} (4.7 MB)"
    assert lines[-1].startswith("next        ")
    assert lines[-1].endswith(f" try {folder} 'Who?'")
    assert not list(runs.state.glob("runs/*/attempt-*"))


def test_two_workers_for_machines(runs: Runs) -> None:
    runs.write_job(replicas=2)
    code, out, err = runs.run("--json")
    assert (code, err) == (0, "")
    events = [parse_event(line) for line in out.splitlines()]
    assert len([event for event in events if isinstance(event, Step)]) == 6
    assert [type(event) for event in events if isinstance(event, Sample | Artifact | Outcome)] == [
        Sample,
        Artifact,
        Outcome,
    ]
    assert isinstance(events[-1], Outcome)
    assert {event.worker for event in events} == {0, 1}


def test_a_published_run_is_not_trained_again(runs: Runs) -> None:
    uid = published(runs)
    code, out, _ = runs.run()
    assert code == 0
    assert "demo is finished already, by attempt 1" in out
    assert f"adapter     {runs.output}/{uid}/attempt-1/adapter (0 B)" in out
    code, out, _ = runs.run("--fresh")
    assert code == 0
    assert "step 6/6" in out


def published(runs: Runs) -> str:
    """Train once, and put in place what a real publication would have."""
    assert runs.run("--keep-work")[0] == 0
    (config,) = runs.state.glob("runs/*/attempt-1/run.json")
    uid = str(json.loads(config.read_text())["uid"])
    adapter = runs.output / uid / "attempt-1/adapter"
    adapter.mkdir(parents=True)
    (adapter / "manifest.json").write_text('{"version": 1, "files": {}}')
    return uid


def test_a_failure_is_told_in_three_lines(runs: Runs) -> None:
    runs.write_job(replicas=2)
    code, _, err = runs.run(ranks="--steps 500 --fault oom@1:3")
    assert code == 17
    lines = err.splitlines()
    assert lines[0] == "finetune run: OutOfMemory: rank 1 (worker 1): OutOfMemoryError: HIP out of memory."
    assert lines[1].startswith("  hint: lower training.microBatchSize")
    assert lines[2].endswith("attempt-1 (-v shows the traceback)")
    assert len(lines) == 3
    code, _, err = runs.run("-v", ranks="--steps 500 --fault oom@1:3")
    assert "  | Traceback (most recent call last):" in err.splitlines()
    assert "attempt-2" in err


def test_a_failed_preparation_starts_no_worker(runs: Runs) -> None:
    code, _, err = runs.run(prepare="--reason StorageDenied --message no-right")
    assert code == 12
    assert err.splitlines()[0] == "finetune run: StorageDenied: no-right"
    assert not list(runs.state.glob("runs/*/attempt-1/worker-*"))


def test_a_killed_agent_is_told(runs: Runs) -> None:
    runs.write_job(replicas=2)
    process = runs.start(ranks="--steps 2000")
    pids = runs.pids(2)
    agents = {parent(pid) for pid in pids}
    os.kill(agents.pop(), signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (19, 23)
    assert "was lost" in err or "was killed by signal 9" in err
    assert not any(map(alive, pids))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ctrl_c_takes_a_checkpoint(runs: Runs) -> None:
    runs.write_job(replicas=2)
    process = runs.start(ranks="--steps 2000")
    pids = runs.pids(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 21
    assert "stopping: checkpoint at the next step (once more: stop at once)" in out
    assert "checkpoint of step" in out
    assert "; run the same command to continue from step" in err
    assert not any(map(alive, pids))


def test_a_second_ctrl_c_kills(runs: Runs) -> None:
    process = runs.start(ranks="--steps 2000 --ignore-term")
    pids = runs.pids(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "killed" in err
    until(lambda: not any(map(alive, pids)), 5)


def test_ctrl_c_during_preparation(runs: Runs) -> None:
    process = runs.start(prepare="--seconds 60")
    until(lambda: bool(list(runs.state.glob("runs/*/attempt-1/prepare"))))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 21
    assert "stopped before the first step; run the same command to begin again" in err


def test_ctrl_c_while_a_worker_starts(runs: Runs) -> None:
    process = runs.start(ranks="--steps 2000")
    until(lambda: bool(list(runs.state.glob("runs/*/attempt-1/worker-0/worker.log"))))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 21
    assert "stopped before the first step; run the same command to begin again" in err


def test_nothing_outlives_a_killed_run(runs: Runs) -> None:
    runs.write_job(replicas=2)
    process = runs.start(ranks="--steps 2000")
    pids = runs.pids(2)
    process.kill()
    process.communicate(timeout=10)
    until(lambda: not any(map(alive, pids)), 10)


def test_a_reader_that_goes_away_stops_the_run(runs: Runs) -> None:
    process = runs.start(ranks="--steps 2000")
    pids = runs.pids(1)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    process.wait(20)
    assert process.returncode != 0
    assert not any(map(alive, pids))


def test_the_same_job_twice_at_once(runs: Runs) -> None:
    first = runs.start(ranks="--steps 2000")
    runs.pids(1)
    code, _, err = runs.run()
    assert code == 15
    assert err.splitlines() == [
        f"finetune run: PreflightFailed: this job is running on this machine already, in process {first.pid}",
        "  hint: wait for it, or stop it with Ctrl-C where it runs",
    ]


def test_gpus_that_are_not_there(runs: Runs) -> None:
    runs.write_job(replicas=2, gpus=64)
    code, _, err = runs.run()
    assert code == 15
    assert "the job wants 128 GPUs, and none can be opened on this machine" in err
    assert "set workers.gpusPerWorker: 0 to train on the CPU" in err


def test_an_output_that_cannot_be_written(runs: Runs) -> None:
    runs.output.write_text("a file, not a folder")
    code, _, err = runs.run()
    assert code in (12, 13)
    assert str(runs.output) in err
    assert "Traceback" not in err


def test_a_state_folder_that_cannot_be_written(runs: Runs) -> None:
    runs.state.write_text("a file, not a folder")
    code, _, err = runs.run()
    assert code == 15
    assert f"cannot work in {runs.state}" in err


def test_faults_of_the_job_file(runs: Runs) -> None:
    runs.job.write_text(runs.job.read_text().replace("dataset:", "datasets:"))
    code, out, err = runs.run()
    assert (code, out) == (1, "")
    assert f"{runs.job}:6: spec.datasets:" in err
    assert err.splitlines()[-1].startswith("finetune run: ")
    runs.job.unlink()
    code, _, err = runs.run()
    assert (code, err) == (2, f"finetune run: {runs.job}: no such file or directory\n")


def test_a_terminal_sees_a_bar(runs: Runs) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        runs.command(),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=runs.folder,
        env=runs.environment | {"TERM": "xterm-256color", "COLUMNS": "120"},
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # how a terminal says that its other end is closed
        pass
    finally:
        os.close(master)
    assert process.wait(20) == 0
    text = shown.decode()
    assert "━" in text
    assert "6/6  loss 0.333" in text
    assert "step 6/6" not in text
    assert "data: 10 rows" in text
    assert "test loss   4.280 before" in text


def test_nothing_outlives_a_run_that_is_killed_while_it_looks_at_the_output(runs: Runs) -> None:
    pid_file = runs.folder / "pid"
    write = f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))"
    process = runs.start(survey=f"import os, pathlib, time; {write}; time.sleep(60)")
    until(lambda: pid_file.exists() and pid_file.read_text() != "")
    process.kill()
    process.communicate(timeout=20)
    until(lambda: not alive(int(pid_file.read_text())), seconds=5)
