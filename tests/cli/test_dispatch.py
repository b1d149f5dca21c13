"""The `finetune` command itself: finds commands, stays light, ends well whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finetune_operator.cli import commands

JOBS = Path(__file__).parents[1] / "cases" / "jobs"
FINETUNE = [sys.executable, "-m", "finetune_operator.cli"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str]], int]], None]:
    """Put a command named `probe` into the table."""

    def install(main: Callable[[list[str]], int]) -> None:
        monkeypatch.setitem(commands.COMMANDS, "probe", ("probe_command", "for tests"))
        monkeypatch.setitem(sys.modules, "probe_command", SimpleNamespace(main=main))

    return install


def test_arguments_and_exit_code_pass_through(command: Any) -> None:
    seen: list[list[str]] = []

    def probe(argv: list[str]) -> int:
        seen.append(argv)
        return 17

    command(probe)
    assert commands.dispatch(["probe", "a", "--b"]) == 17
    assert seen == [["a", "--b"]]


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def probe(argv: list[str]) -> int:
        raise error

    return probe


ENDINGS: list[tuple[BaseException, int, str]] = [
    (KeyboardInterrupt(), 130, ""),
    (OSError(28, "No space left on device"), 2, "finetune: No space left on device\n"),
    (KeyError("x"), 23, "finetune: unexpected KeyError: 'x' (-v shows where)\n"),
]


@pytest.mark.parametrize(("error", "code", "says"), ENDINGS, ids=repr)
def test_endings(
    error: BaseException, code: int, says: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(error))
    assert commands.dispatch(["probe"]) == code
    assert capsys.readouterr() == ("", says)


def test_the_traceback_is_there_for_who_wants_it(command: Any) -> None:
    command(raising(KeyError("x")))
    with pytest.raises(KeyError):
        commands.dispatch(["probe", "-v"])


USAGE: list[tuple[list[str], int, str]] = [
    ([], 2, "usage: finetune COMMAND"),
    (["--help"], 0, "validate"),
    (["-h"], 0, "usage: finetune COMMAND"),
    (["help"], 0, "usage: finetune COMMAND"),
    (["--version"], 0, "finetune-operator 0."),
    (["valdate"], 2, "did you mean validate?"),
    (["zzz"], 2, "there are validate, run, try, data"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), USAGE, ids=str)
def test_usage(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.dispatch(arguments) == code
    assert says in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("name", "module"), [("try", "finetune_trainer.artifact.chat"), ("data", "finetune_trainer.data.cli")]
)
def test_commands_of_the_trainer_replace_this_process(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[list[str]] = []

    def execute(path: str, arguments: list[str]) -> None:
        executed.append([path, *arguments])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execute)
    with pytest.raises(SystemExit):
        commands.dispatch([name, "a", "-b"])
    assert executed == [[sys.executable, sys.executable, "-P", "-m", module, "a", "-b"]]


def test_without_the_training_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert commands.dispatch(["try", "x"]) == 2
    assert capsys.readouterr().err == (
        "finetune try: needs torch, transformers, peft; pip install 'finetune-operator[trainer]'\n"
    )


def modules_after(arguments: list[str]) -> set[str]:
    """Which modules a command has imported when it ends."""
    code = (
        "import sys; from finetune_operator.cli.commands import dispatch; code = dispatch(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


HEAVY = {"torch", "transformers", "kopf", "kubernetes", "rich", "aiohttp", "finetune_trainer"}


def test_help_imports_nothing_heavy() -> None:
    assert not modules_after(["--help"]) & (HEAVY | {"pydantic", "yaml", "argparse", "typing"})


def test_validate_imports_nothing_heavy() -> None:
    assert not modules_after(["validate", str(JOBS / "qwen-7b-lora.yaml")]) & (HEAVY | {"importlib.metadata"})


def test_an_expert_overlay_costs_no_more_than_the_contract() -> None:
    imported = modules_after(["validate", str(JOBS / "everything.yaml")])
    assert not imported & (HEAVY - {"finetune_trainer"})
    assert {name for name in imported if name.startswith("finetune_trainer.")} == {
        name for name in imported if name.startswith("finetune_trainer.config")
    }


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*FINETUNE, *arguments], **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
def test_ctrl_c_leaves_without_a_traceback() -> None:
    with started("validate", "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        # Python's own start-up is not ours to guard: wait until one of our imports is mapped.
        while b"_pydantic_core" not in Path(f"/proc/{process.pid}/maps").read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (130, b"")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with started("validate", str(JOBS), stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (141, b"")


@pytest.mark.slow
def test_a_full_disk_is_one_line() -> None:
    with (
        Path("/dev/full").open("wb") as full,
        started("--help", stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (2, b"finetune: No space left on device\n")


def processor_seconds(arguments: list[str]) -> float:
    """The least processor time of five runs: what a quiet machine takes, seen on a busy one."""
    least = float("inf")
    for _ in range(5):
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = 0
        least = min(least, usage.ru_utime + usage.ru_stime)
    return least


@pytest.mark.slow
def test_help_is_quick() -> None:
    bare = processor_seconds([sys.executable, "-c", "pass"])
    assert processor_seconds([*FINETUNE, "--help"]) < 5 * bare


@pytest.mark.slow
def test_validate_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As installed: pip compiles what it installs, whether or not this run may write bytecode.
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert processor_seconds([*FINETUNE, "validate", str(JOBS / "everything.yaml")]) < 0.5
