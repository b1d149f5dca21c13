from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from finetune_trainer.artifact.chat import main
from finetune_trainer.config import ExitReason
from tests.artifact.conftest import PAIRS, Maker


def start(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "finetune_trainer.artifact.chat", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("finetune try: ")
    assert err.count("\n") == 1
    return err


def test_a_wrong_folder_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere"), "Who?"]) == ExitReason.INVALID_CONFIGURATION.exit_code
    assert "does not exist, not a folder; name the folder that" in complaint(capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: DIR"),
        (["d", "--max-tokens", "0"], "'0' is not a whole number from 1"),
        (["d", "--temperature", "warm"], "'warm' is not a number from 0 to 10"),
        (["d", "--temperature", "nan"], "'nan' is not a number"),
        (["d", "--sytem", "x"], "unrecognized arguments: --sytem"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for option in ("--base", "--compare", "--max-tokens", "--temperature", "--system", "--trust-remote-code"):
        assert option in told


def test_mistakes_are_told_before_torch_is_imported() -> None:
    check = (
        "import sys; from finetune_trainer.artifact.chat import main; code = main(['/nowhere/at/all']);"
        "assert not {'torch', 'transformers', 'peft'} & sys.modules.keys(); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=60, check=False)
    assert done.returncode == ExitReason.INVALID_CONFIGURATION.exit_code, done.stderr


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published adapter's folder."""
    from finetune_trainer.artifact.publish import publish
    from finetune_trainer.artifact.results import TrainingResults

    maker = Maker(base, tmp_path_factory.mktemp("chat"))
    run = maker.run()
    maker.all(run)
    publish(run, TrainingResults.load(maker.work), maker.work, lambda _: None)
    return maker.root / "out/uid-1/attempt-1/adapter"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
class TestAnswers:
    def test_one_question(self, adapter: Path) -> None:
        done = start(str(adapter.parents[2]), PAIRS[0][0], "--max-tokens", "8")
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        told = done.stderr.splitlines()
        assert told == [
            f"file://{adapter} (job harbour, attempt 1, base {told[0].split('base ')[1].split(',')[0]}, "
            "test loss 4.25 before and 0.12 after)"
        ]

    def test_compare_and_questions_from_a_pipe(self, adapter: Path) -> None:
        done = start(str(adapter), "--compare", "--max-tokens", "8", typed="Who?\n\nWhere?\n")
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith(("base:  ", "tuned: "))]
        assert [line.split(":")[0] for line in lines] == ["base", "tuned", "base", "tuned"]
        assert lines[0].removeprefix("base:  ") != lines[1].removeprefix("tuned: ")

    def test_a_base_model_that_is_gone(
        self, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = [str(adapter), "Who?", "--base", str(tmp_path / "gone")]
        assert main(arguments) == ExitReason.MODEL_UNAVAILABLE.exit_code
        assert "gone does not exist; check --base" in complaint(capsys)

    def test_a_damaged_file(self, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        copy = tmp_path / "adapter"
        shutil.copytree(adapter, copy)
        (copy / "tokenizer.json").write_bytes((copy / "tokenizer.json").read_bytes()[:-1])
        assert main([str(copy), "Who?"]) == ExitReason.STORAGE_UNAVAILABLE.exit_code
        assert "tokenizer.json is damaged" in complaint(capsys)

    def test_a_base_model_of_another_shape(
        self, adapter: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig.from_pretrained(base)
        config.intermediate_size = 96
        LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
        assert main([str(adapter), "Who?", "--base", str(tmp_path / "other")]) == 10
        out, err = capsys.readouterr()
        assert "does not fit the base model: " in err.splitlines()[-1]
        assert out == ""
