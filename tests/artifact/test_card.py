from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_trainer.artifact.card import adapter_card, merged_card
from finetune_trainer.artifact.facts import Facts, stop_tokens
from finetune_trainer.artifact.origin import Origin
from finetune_trainer.artifact.results import TrainingResults
from finetune_trainer.config import Adapter, Dataset, Model, Output, Quantization, RunConfig, Source
from finetune_trainer.data.report import File
from finetune_trainer.data.tokeniser import Tokeniser, read_files
from tests.artifact.conftest import report

COMMIT = "0123456789abcdef0123456789abcdef01234567"
URI = "file:///out/uid-1/attempt-2/adapter"


def facts(adapter: Adapter | None = None, **changes: Any) -> Facts:
    run = RunConfig(
        name="harbour",
        uid="uid-1",
        attempt=2,
        model=Model(uri="hf://org/model"),
        dataset=Dataset(sources=[Source(uri="s3://data/a|b.jsonl")]),
        adapter=adapter or Adapter(),
        output=Output(uri="file:///out"),
    )
    results = TrainingResults(
        step=10,
        total_steps=10,
        test_loss_before=4.25,
        test_loss_after=0.125,
        validation_loss=0.25,
        tokens=123456,
        seconds=61.2,
        world_size=2,
        zero_stage=3,
        versions={"torch": "2.13.0", "peft": "0.21.2"},
    )
    return Facts(
        run,
        Origin("hf://org/model", "org/model", "main", COMMIT),
        report(**changes),
        results,
        stops=[2],
        own_stop=False,
    )


def headings(card: str) -> list[str]:
    return [line for line in card.splitlines() if line.startswith("#")]


def front(card: str) -> dict[str, object]:
    loaded: dict[str, object] = yaml.safe_load(card.split("---\n")[1])
    return loaded


def test_the_adapters_card() -> None:
    card = adapter_card(facts(), URI)
    assert front(card) == {
        "base_model": "org/model",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["lora", "finetune-operator"],
    }
    assert headings(card) == [
        "# harbour",
        "## Results",
        "## Serve it",
        "## Load it",
        "## Training",
        "## Data",
    ]
    for line in (
        "A LoRA adapter of rank 16 for `org/model`, trained by the job `harbour` (attempt 2).",
        "| test | 4.2500 | 0.1250 |",
        "| validation |  | 0.2500 |",
        f"vllm serve org/model --revision {COMMIT} --enable-lora --lora-modules "
        "harbour=/out/uid-1/attempt-2/adapter --max-lora-rank 16",
        f"base = AutoModelForCausalLM.from_pretrained('org/model', revision='{COMMIT}', dtype=\"auto\")",
        "| base model | `hf://org/model` |",
        f"| base model revision | `{COMMIT}` |",
        "| rank, alpha, dropout | 16, 32, 0.05 |",
        "| length | 3 epochs, 10 optimizer steps, 123,456 tokens |",
        "| learning rate | 0.0001, Cosine, warm-up 0.03 |",
        "| ranks | 2 ranks, ZeRO stage 3 |",
        "| time in training | 61 s |",
        "| versions | peft 0.21.2, torch 2.13.0 |",
        "| sources | `s3://data/a\\|b.jsonl` |",
        "| rows | 5 (1 train, 0 validation, 4 test) |",
        "| tokens | 200, of which 25% learned |",
        "| template | Model |",
        f"| SHA-256 | `{'ab' * 32}` |",
    ):
        assert line in card.splitlines(), line
    assert "rank stabilised" not in card
    assert "None" not in card


def test_the_code_in_the_card_is_python() -> None:
    card = adapter_card(facts(), URI)
    compile(card.split("```python\n")[1].split("```")[0], "card", "exec")


def test_the_merged_models_card() -> None:
    card = merged_card(facts(), "file:///out/uid-1/attempt-2/merged")
    assert front(card)["library_name"] == "transformers"
    assert front(card)["base_model_relation"] == "merge"
    assert headings(card) == ["# harbour (merged)", "## Results", "## Serve it", "## Training", "## Data"]
    assert "vllm serve /out/uid-1/attempt-2/merged --served-model-name harbour" in card.splitlines()


def test_a_qlora_card_says_how_the_base_was_held() -> None:
    card = adapter_card(facts(Adapter(quantization=Quantization())), URI)
    assert "| method | QLoRA (NF4) |" in card.splitlines()
    assert "--quantization bitsandbytes" in card


@pytest.mark.parametrize(
    ("form", "template", "chat", "own_template"),
    [
        ("Messages", "Model", True, False),
        ("Alpaca", "Llama3", True, True),
        ("Text", "Llama3", False, False),
        ("PromptCompletion", "Model", False, False),
    ],
)
def test_text_needs_no_template(form: str, template: str, chat: bool, own_template: bool) -> None:
    found = facts(files=[File(name="rows", format=form, rows=5)], template=template)
    assert (found.chat, found.own_template) == (chat, own_template)
    if not chat:
        assert "| template | none: plain text |" in adapter_card(found, URI).splitlines()


@pytest.mark.parametrize(
    ("end_of_turn", "stops", "own"),
    [("<|im_end|>", [2], False), ("<|endoftext|>", [2, 0], True), ("\n", [2], False), ("", [2], False)],
)
def test_stops(tokenizer_folder: Path, end_of_turn: str, stops: list[int], own: bool) -> None:
    assert stop_tokens(Tokeniser(read_files(tokenizer_folder)), end_of_turn) == (stops, own)
