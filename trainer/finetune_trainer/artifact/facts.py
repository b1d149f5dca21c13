"""Everything about a run that its card, its manifest and its serve command tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from finetune_trainer.artifact.metadata import BaseFacts, DataFacts, JobFacts, Losses, Metadata
from finetune_trainer.artifact.origin import Origin
from finetune_trainer.artifact.results import TrainingResults
from finetune_trainer.artifact.serve import Serving, serve_command, serve_merged_command
from finetune_trainer.config import ExitReason, RunConfig, RunError
from finetune_trainer.data.report import Report
from finetune_trainer.data.tokeniser import Tokeniser

_CONVERSATIONS = {"Alpaca", "ShareGPT", "Messages"}


@dataclass(frozen=True)
class Facts:
    """One finished training."""

    run: RunConfig
    origin: Origin
    report: Report
    results: TrainingResults
    stops: list[int]
    """Token ids that end a reply."""
    own_stop: bool
    """One of `stops` is not in the base model's own configuration."""

    @property
    def chat(self) -> bool:
        """Rows are conversations, and prompts are put into the chat template."""
        return any(file.format in _CONVERSATIONS for file in self.report.files)

    @property
    def own_template(self) -> bool:
        """The chat template is a named one and not the base model's."""
        return self.chat and self.report.template != "Model"

    @property
    def method(self) -> str:
        """`LoRA` or `QLoRA`."""
        return "LoRA" if self.run.adapter.quantization is None else "QLoRA"

    def serve_command(self, uri: str) -> str:
        """How to serve the adapter published at `uri`."""
        serving = Serving(
            self.run.name,
            self.run.adapter.rank,
            own_template=self.own_template,
            own_stop=self.own_stop,
            trust_remote_code=self.run.model.trust_remote_code,
        )
        return serve_command(self.origin, uri, serving)

    def serve_merged_command(self, uri: str) -> str:
        """How to serve the merged model published at `uri`."""
        return serve_merged_command(uri, self.run.name)

    def metadata(self, kind: Literal["adapter", "merged"], now: datetime) -> Metadata:
        """What the manifest says; `now` is in UTC."""
        run, results = self.run, self.results
        return Metadata(
            kind=kind,
            job=JobFacts(name=run.name, namespace=run.namespace, uid=run.uid, attempt=run.attempt),
            base_model=BaseFacts(
                uri=self.origin.uri,
                name=self.origin.name,
                revision=self.origin.revision,
                commit=self.origin.commit,
            ),
            precision=run.training.precision,
            quantization=run.adapter.quantization,
            dataset=DataFacts(
                sha256=self.report.dataset_hash,
                rows=self.report.rows,
                template=self.report.template,
                system_prompt=run.dataset.system_prompt,
                chat=self.chat,
            ),
            losses=Losses(
                test_before=results.test_loss_before,
                test_after=results.test_loss_after,
                validation=results.validation_loss,
                train=results.train_loss,
            ),
            versions=results.versions,
            published_at=now.isoformat(timespec="seconds"),
        )


def read_report(path: Path) -> Report:
    """Read the report of the prepare stage.

    Raises:
        RunError: StorageUnavailable, it is of another version.
    """
    try:
        return Report.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunError(
            ExitReason.STORAGE_UNAVAILABLE, f"{path} is no report of this version: {place}: {first['msg']}"
        ) from None


def stop_tokens(tokeniser: Tokeniser, end_of_turn: str) -> tuple[list[int], bool]:
    """Ids that end a reply: the base model's, and the token that training taught as the end.

    Returns:
        The ids, and whether the base model's own configuration lacks one of them.
    """
    known = list(tokeniser.files.stops)
    if tokeniser.eos is not None and tokeniser.eos[1] not in known:
        known.append(tokeniser.eos[1])
    taught = tokeniser.specials.get(end_of_turn)
    if taught is None or taught in known:
        return known, False
    return [*known, taught], True
