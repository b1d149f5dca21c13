"""Folders ready to be published: the adapter, or the merged model, with all that belongs beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from finetune_trainer.artifact import card
from finetune_trainer.artifact.facts import Facts
from finetune_trainer.artifact.verify import CONFIG, WEIGHTS
from finetune_trainer.data.tokeniser import PATTERNS
from finetune_trainer.storage.failures import local

TEMPLATE = "chat_template.jinja"
TRAIN_LOG = "train-log.jsonl"
REPORT = "report.json"
GENERATION = "generation_config.json"
CARD = "README.md"

_NOT_THE_TOKENIZER = {"config.json", GENERATION}


def assemble_adapter(facts: Facts, adapter: Path, base: Path, template: Path, target: Path, uri: str) -> None:
    """Make the folder `target` with what is published as the adapter.

    Args:
        facts: of the run.
        adapter: folder with the trained adapter.
        base: the base model's folder.
        template: the chat template of training, a file that need not exist for text without turns.
        target: a folder that does not exist yet.
        uri: where it will be published.

    Raises:
        RunError: StorageUnavailable, the disk is full.
    """
    with local(target, "write"):
        target.mkdir()
        shutil.copyfile(adapter / WEIGHTS, target / WEIGHTS)
        config = json.loads((adapter / CONFIG).read_bytes())
        config |= {
            "base_model_name_or_path": facts.origin.name,
            "revision": facts.origin.pinned,
            "inference_mode": True,
        }
        _write_json(target / CONFIG, config)
        _add_common(facts, base, template, target)
        (target / CARD).write_text(card.adapter_card(facts, uri), encoding="utf-8")


def complete_merged(facts: Facts, base: Path, template: Path, target: Path, uri: str) -> None:
    """Put tokenizer, template, card and records beside the merged weights in `target`.

    Raises:
        RunError: StorageUnavailable, the disk is full.
    """
    with local(target, "write"):
        _add_common(facts, base, template, target)
        (target / CARD).write_text(card.merged_card(facts, uri), encoding="utf-8")


def _add_common(facts: Facts, base: Path, template: Path, target: Path) -> None:
    _add_tokenizer(facts, base, template, target)
    generation = _read_json(base / GENERATION)
    if facts.stops:
        generation["eos_token_id"] = facts.stops if len(facts.stops) > 1 else facts.stops[0]
    if generation:
        _write_json(target / GENERATION, generation)
    lines = (json.dumps(event, ensure_ascii=False) for event in facts.results.log)
    (target / TRAIN_LOG).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    training = facts.results.model_dump(mode="json", exclude={"log"})
    _write_json(target / REPORT, facts.report.model_dump(mode="json") | {"training": training})


def _add_tokenizer(facts: Facts, base: Path, template: Path, target: Path) -> None:
    """The base model's tokenizer byte for byte, except that the template of training takes its place."""
    for pattern in PATTERNS:
        for file in base.glob(pattern):
            if file.is_file() and file.name not in _NOT_THE_TOKENIZER:
                shutil.copyfile(file, target / file.name)
    if not facts.own_template:
        return
    for name in ("chat_template.json", TEMPLATE):
        (target / name).unlink(missing_ok=True)
    config = _read_json(target / "tokenizer_config.json")
    if config.pop("chat_template", None) is not None:
        _write_json(target / "tokenizer_config.json", config)
    shutil.copyfile(template, target / TEMPLATE)


def _read_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    value: dict[str, object] = json.loads(path.read_bytes())
    return value


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
