from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from finetune_trainer.artifact.publish import publish
from finetune_trainer.artifact.results import TrainingResults
from finetune_trainer.config import (
    Adapter,
    Artifact,
    Event,
    ExitReason,
    Outcome,
    Output,
    RunConfig,
    RunError,
    Sample,
    Stage,
    Warned,
    parse_event,
)
from finetune_trainer.storage import Manifest, open_output
from tests.artifact.conftest import CHATML, PAIRS, Maker, report

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

PREFIX = "uid-1/attempt-1/adapter"


def command(config: Path, work: Path) -> list[str]:
    module = "finetune_trainer.artifact.publish"
    return [sys.executable, "-P", "-m", module, "--config", str(config), "--work", str(work)]


def publish_here(maker: Maker, run: RunConfig) -> list[Event]:
    """The stage inside of this process; returns its events."""
    events: list[Event] = []
    publish(run, TrainingResults.load(maker.work), maker.work, events.append)
    return events


def refused(maker: Maker, run: RunConfig) -> RunError:
    with pytest.raises(RunError) as caught:
        publish_here(maker, run)
    assert open_output(run.output.uri).manifest(PREFIX) is None
    return caught.value


@pytest.fixture(scope="module")
def published(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sequence[Event]]:
    """The output's folder, and the events of the process that published into it."""
    maker = Maker(base, tmp_path_factory.mktemp("published"))
    run = maker.run(output=Output(uri=f"file://{maker.root / 'out'}", merge=True))
    done = subprocess.run(
        command(maker.all(run), maker.work), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return maker.root / "out", [parse_event(line) for line in done.stdout.splitlines()]


def test_events(published: tuple[Path, Sequence[Event]]) -> None:
    out, events = published
    assert [event.name for event in events if isinstance(event, Stage)] == [
        "verify",
        "sample",
        "publish",
        "merge",
    ]
    samples = [event for event in events if isinstance(event, Sample)]
    assert [(sample.prompt, sample.expected) for sample in samples] == PAIRS[:3]
    assert any(sample.before != sample.after for sample in samples)
    (artifact,) = [event for event in events if isinstance(event, Artifact)]
    assert artifact.uri == f"file://{out}/{PREFIX}"
    assert (artifact.test_loss_before, artifact.test_loss_after) == (4.25, 0.125)
    manifest = Manifest.decode((out / PREFIX / "manifest.json").read_bytes(), "")
    assert (artifact.manifest_sha256, artifact.bytes) == (manifest.sha256, manifest.size)
    assert artifact.serve_command.endswith(f"--lora-modules harbour={out}/{PREFIX} --max-lora-rank 8")
    last = events[-1]
    assert isinstance(last, Outcome)
    assert (last.reason, last.step) == (ExitReason.SUCCEEDED, 12)


def test_folder(published: tuple[Path, Sequence[Event]], base: Path) -> None:
    folder = published[0] / PREFIX
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert set(manifest["files"]) == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "generation_config.json",
        "report.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "train-log.jsonl",
    }
    assert manifest["kind"] == "adapter"
    assert manifest["job"] == {"name": "harbour", "namespace": "default", "uid": "uid-1", "attempt": 1}
    assert manifest["base_model"] == {
        "uri": f"file://{base}",
        "name": str(base),
        "revision": None,
        "commit": None,
    }
    assert manifest["dataset"]["sha256"] == "ab" * 32
    assert manifest["losses"]["test_after"] == 0.125
    assert manifest["versions"] == {"torch": "2.13.0", "peft": "0.21.2"}
    assert manifest["quantization"] is None
    assert json.loads((folder / "adapter_config.json").read_bytes())["base_model_name_or_path"] == str(base)
    assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"] == 2
    assert json.loads((folder / "train-log.jsonl").read_text()) == {
        "event": "step",
        "step": 12,
        "loss": 0.0625,
    }
    told = json.loads((folder / "report.json").read_bytes())
    assert (told["rows"], told["training"]["step"]) == (5, 12)


def test_plain_peft_loads_it(published: tuple[Path, Sequence[Event]], base: Path) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(published[0] / PREFIX)
    ids = torch.tensor([tokenizer(PAIRS[0][0]).input_ids])
    adapted = AutoPeftModelForCausalLM.from_pretrained(published[0] / PREFIX)
    merged = AutoModelForCausalLM.from_pretrained(published[0] / "uid-1/attempt-1/merged")
    plain = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        with_adapter, with_merged, without = (model(ids).logits for model in (adapted, merged, plain))
    assert (with_adapter - without).abs().max() > 1e-3
    torch.testing.assert_close(with_merged, with_adapter, atol=1e-5, rtol=0)


def test_the_merged_model_is_published_likewise(published: tuple[Path, Sequence[Event]]) -> None:
    folder = published[0] / "uid-1/attempt-1/merged"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["kind"] == "merged"
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= set(manifest["files"])
    assert f"vllm serve {folder}" in (folder / "README.md").read_text()


def test_publishing_again_is_harmless_and_never_mixes(maker: Maker) -> None:
    run = maker.run()
    maker.all(run)
    first = publish_here(maker, run)[-1]
    assert publish_here(maker, run)[-1] == first
    assert sorted(path.name for path in maker.work.iterdir()) == ["adapter", "training.json"]
    (maker.work / "training.json").write_text(
        (maker.work / "training.json").read_text().replace("0.125", "0.5")
    )
    with pytest.raises(RunError, match="is published already, with other files"):
        publish_here(maker, run)


def test_an_untrained_adapter_is_refused(maker: Maker) -> None:
    run = maker.run()
    maker.all(run)
    (maker.work / "adapter" / "adapter_model.safetensors").unlink()
    (maker.work / "adapter" / "adapter_config.json").unlink()
    (maker.work / "adapter").rmdir()
    maker.save_adapter(run, scale=0)
    error = refused(maker, run)
    assert (error.reason, "nothing was learned" in error.message) == (ExitReason.INVALID_CONFIGURATION, True)


def test_an_adapter_of_fewer_modules_is_refused(maker: Maker) -> None:
    maker.all(maker.run(adapter=Adapter(rank=4, alpha=8, target_modules=["q_proj"])))
    error = refused(maker, maker.run())
    assert (error.reason, "of 28 tensors missing" in error.message) == (ExitReason.INTERNAL, True)


def test_a_cut_off_file_is_refused(maker: Maker) -> None:
    run = maker.run()
    maker.all(run)
    weights = maker.work / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    error = refused(maker, run)
    assert (error.reason, "is damaged" in error.message) == (ExitReason.INTERNAL, True)


def test_without_held_out_rows_it_says_so_and_publishes(maker: Maker) -> None:
    run = maker.run()
    maker.save_adapter(run)
    maker.save_results()
    maker.publish_prepared(run, pairs=[])
    events = publish_here(maker, run)
    assert not any(isinstance(event, Sample) for event in events)
    assert [event.message for event in events if isinstance(event, Warned)] == [
        "test and validation splits are empty: no held-out questions can be shown"
    ]
    assert isinstance(events[-1], Artifact)


def test_a_named_template_takes_the_place_of_the_models_own(maker: Maker) -> None:
    run = maker.run()
    maker.save_adapter(run)
    maker.save_results()
    told = report(template="ChatML", end_of_turn="<|endoftext|>")
    maker.publish_prepared(run, template=CHATML + "{# named #}", told=told)
    artifact = publish_here(maker, run)[-1]
    assert isinstance(artifact, Artifact)
    folder = Path(artifact.uri.removeprefix("file://"))
    assert (folder / "chat_template.jinja").read_text().endswith("{# named #}")
    assert json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"] == [2, 0]
    assert f"--chat-template {folder}/chat_template.jinja" in artifact.serve_command
    assert artifact.serve_command.endswith(f"--generation-config {folder}")


def test_qlora_is_loaded_back_onto_the_same_quantised_base(maker: Maker) -> None:
    from finetune_trainer.config import Quantization

    run = maker.run(adapter=Adapter(rank=4, alpha=8, quantization=Quantization()))
    maker.all(run)
    artifact = publish_here(maker, run)[-1]
    assert isinstance(artifact, Artifact)
    folder = Path(artifact.uri.removeprefix("file://"))
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["quantization"] == {"type": "NF4", "double_quantization": True}
    assert "held in NF4" in (folder / "README.md").read_text()


def test_a_stop_is_a_preemption(maker: Maker) -> None:
    config = maker.all(maker.run())
    with subprocess.Popen(command(config, maker.work), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert '"verify"' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        last = parse_event(process.stdout.readlines()[-1])
    assert isinstance(last, Outcome)
    assert (last.reason, last.step) == (ExitReason.PREEMPTED, 12)
    assert process.returncode == ExitReason.PREEMPTED.exit_code


@pytest.mark.parametrize(
    ("missing", "reason", "says"),
    [
        ("training.json", ExitReason.INTERNAL, "results cannot be read"),
        ("adapter/adapter_model.safetensors", ExitReason.INTERNAL, "adapter_model.safetensors is missing"),
    ],
)
def test_what_is_missing_is_named(maker: Maker, missing: str, reason: ExitReason, says: str) -> None:
    config = maker.all(maker.run())
    (maker.work / missing).unlink()
    done = subprocess.run(
        command(config, maker.work), capture_output=True, text=True, timeout=120, check=False
    )
    last = parse_event(done.stdout.splitlines()[-1])
    assert isinstance(last, Outcome)
    assert (last.reason, done.returncode) == (reason, reason.exit_code)
    assert says in last.message
    assert "Traceback" not in done.stderr
