"""The model card: README.md of a published folder, from the facts of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from finetune_trainer.artifact.facts import Facts


def adapter_card(facts: Facts, uri: str) -> str:
    """The card of the adapter published at `uri`."""
    front = {
        "base_model": facts.origin.name,
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": [facts.method.lower(), "finetune-operator"],
    }
    return _page(
        front,
        facts.run.name,
        [
            f"A {facts.method} adapter of rank {facts.run.adapter.rank} for "
            f"`{facts.origin.name}`, trained by the job `{facts.run.name}` (attempt {facts.run.attempt}).",
            *_results(facts),
            *_serving(facts.serve_command(uri)),
            *_loading(facts),
            *_training(facts),
            *_data(facts),
        ],
    )


def merged_card(facts: Facts, uri: str) -> str:
    """The card of the merged model published at `uri`."""
    front = {
        "base_model": facts.origin.name,
        "base_model_relation": "merge",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [facts.method.lower(), "finetune-operator"],
    }
    return _page(
        front,
        f"{facts.run.name} (merged)",
        [
            f"`{facts.origin.name}` with the adapter of the job `{facts.run.name}` "
            f"(attempt {facts.run.attempt}) merged into its weights.",
            *_results(facts),
            *_serving(facts.serve_merged_command(uri)),
            *_training(facts),
            *_data(facts),
        ],
    )


def _page(front: Mapping[str, object], title: str, parts: Sequence[str]) -> str:
    header = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)
    return "\n\n".join([f"---\n{header}---", f"# {title}", *parts]) + "\n"


def _results(facts: Facts) -> list[str]:
    results = facts.results
    rows = [
        ("test", results.test_loss_before, results.test_loss_after),
        ("validation", None, results.validation_loss),
        ("train", None, results.train_loss),
    ]
    table = [(split, _loss(before), _loss(after)) for split, before, after in rows if after is not None]
    if not table:
        return []
    return [
        "## Results",
        "Mean loss per trained token, in nats. The test split was never trained on.",
        _table(("split", "before", "after"), table),
    ]


def _serving(command: str) -> list[str]:
    return ["## Serve it", f"```sh\n{command}\n```"]


def _loading(facts: Facts) -> list[str]:
    options = ", revision=" + repr(facts.origin.pinned) if facts.origin.pinned else ""
    code = f"""\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({facts.origin.name!r}{options}, dtype="auto")
model = PeftModel.from_pretrained(base, "path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")"""
    parts = ["## Load it", f"```python\n{code}\n```"]
    if facts.run.adapter.quantization is not None:
        parts.append(
            f"While training, the base model's weights were held in {facts.run.adapter.quantization.type}: "
            "its answers are closest to those measured here when it is loaded in the same way "
            "(`BitsAndBytesConfig`, or `--quantization bitsandbytes` with vLLM)."
        )
    return parts


def _training(facts: Facts) -> list[str]:
    run, results = facts.run, facts.results
    training, adapter = run.training, run.adapter
    length = f"{training.max_steps} steps" if training.max_steps else f"{training.epochs:g} epochs"
    gang = (
        f"{results.world_size} rank{'s' if results.world_size > 1 else ''}, ZeRO stage {results.zero_stage}"
    )
    rows = [
        ("base model", f"`{facts.origin.uri}`"),
        ("base model revision", f"`{facts.origin.pinned}`" if facts.origin.pinned else ""),
        ("method", facts.method + (f" ({adapter.quantization.type})" if adapter.quantization else "")),
        ("rank, alpha, dropout", f"{adapter.rank}, {adapter.alpha}, {adapter.dropout:g}"),
        ("rank stabilised", "yes" if adapter.rank_stabilized else ""),
        ("target modules", ", ".join(f"`{name}`" for name in adapter.target_modules)),
        ("length", f"{length}, {results.step} optimizer steps, {results.tokens:,} tokens"),
        ("global batch", f"{training.global_batch_size} rows"),
        (
            "learning rate",
            f"{training.learning_rate:g}, {training.scheduler}, warm-up {training.warmup_ratio:g}",
        ),
        ("weight decay", f"{training.weight_decay:g}"),
        ("precision", training.precision),
        ("seed", str(training.seed)),
        ("ranks", gang),
        ("time in training", f"{results.seconds:.0f} s"),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(results.versions.items()))),
    ]
    return ["## Training", _table(("", ""), [row for row in rows if row[1]])]


def _data(facts: Facts) -> list[str]:
    run, report = facts.run, facts.report
    rows = [
        ("sources", ", ".join(f"`{source.uri}`" for source in run.dataset.sources)),
        (
            "rows",
            f"{report.rows:,} ({', '.join(f'{part.rows:,} {name}' for name, part in report.splits.items())})",
        ),
        ("left out", f"{report.skipped:,} without an answer, {report.dropped:,} too long"),
        ("truncated", f"{report.truncated:,}"),
        ("tokens", f"{report.tokens:,}, of which {report.trained_share:.0%} learned"),
        ("template", report.template if facts.chat else "none: plain text"),
        ("SHA-256", f"`{report.dataset_hash}`"),
    ]
    return ["## Data", _table(("", ""), rows)]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
