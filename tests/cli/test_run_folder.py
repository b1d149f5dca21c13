"""The folder of a run: counted attempts, one holder, nothing trusted that may be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune_operator.cli.run.folder import RunFolder, state_folder
from finetune_trainer.config import ExitReason, RunError


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_STATE", str(tmp_path))


def test_attempts_are_counted_over_processes_and_clearing() -> None:
    with RunFolder("demo", "abc") as folder:
        assert (folder.attempts, folder.uid) == (0, "abc")
        first = folder.begin_attempt()
        assert (first.name, first.is_dir()) == ("attempt-1", True)
        folder.clear()
    with RunFolder("demo", "abc") as folder:
        assert folder.attempts == 1
        assert folder.begin_attempt().name == "attempt-2"
        assert not first.exists()


def test_a_fresh_run_has_another_uid_that_lasts() -> None:
    with RunFolder("demo", "abc") as folder:
        folder.begin_attempt()
        folder.renew()
        assert (folder.uid, folder.attempts) == ("abc-2", 0)
    with RunFolder("demo", "abc") as folder:
        assert folder.uid == "abc-2"
        folder.renew()
        assert folder.uid == "abc-3"


def test_one_holder_at_a_time() -> None:
    with (
        RunFolder("demo", "abc"),
        RunFolder("demo", "other"),
        pytest.raises(RunError, match="is running on this machine already, in process") as caught,
    ):
        RunFolder("demo", "abc").__enter__()
    assert caught.value.reason is ExitReason.PREFLIGHT_FAILED
    with RunFolder("demo", "abc"):
        pass


@pytest.mark.parametrize("damage", ["", "{", '{"attempts": "many"}', "\x00" * 20])
def test_a_damaged_record_counts_from_the_start(damage: str) -> None:
    with RunFolder("demo", "abc") as folder:
        folder.begin_attempt()
        (folder.path / "record.json").write_text(damage)
    with RunFolder("demo", "abc") as folder:
        assert folder.begin_attempt().name == "attempt-1"


def test_where_state_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_folder() == tmp_path
    monkeypatch.delenv("FINETUNE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert state_folder() == Path("/xdg/finetune-operator")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert state_folder() == Path("/home/ada/.local/state/finetune-operator")
