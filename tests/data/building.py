"""One call from files to a verdict, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from finetune_trainer.config import Dataset, Source
from finetune_trainer.data.arrays import Examples
from finetune_trainer.data.build import Builder, OpenedSource
from finetune_trainer.data.faults import Skipped
from finetune_trainer.data.preview import Preview
from finetune_trainer.data.report import Report
from finetune_trainer.data.tokeniser import Tokeniser, read_files
from finetune_trainer.data.work import Plan
from finetune_trainer.storage import open_source


@dataclass
class Built:
    """What a preparation gave."""

    report: Report
    previews: list[Preview]
    skipped: list[Skipped]
    folder: Path
    tokeniser: Tokeniser

    def split(self, name: str = "train") -> Examples:
        return Examples(self.folder / name)

    def text(self, place: int = 0, *, learned: bool | None = None, split: str = "train") -> str:
        """An example's text as decoded from its tokens; `learned` chooses tokens by their flag."""
        examples = self.split(split)
        ids, flags = examples.tokens(place), examples.trained(place)
        chosen = ids if learned is None else ids[flags == learned]
        return self.tokeniser.decode(chosen.tolist())


NOW = datetime(2025, 1, 1, tzinfo=UTC)


def build(
    paths: list[Path],
    model: Path,
    folder: Path,
    *,
    form: str = "Auto",
    processes: int = 1,
    **options: Any,
) -> Built:
    """Prepare files; options are those of `Dataset`."""
    sources = [Source.model_validate({"uri": f"file://{path.absolute()}", "format": form}) for path in paths]
    split = options.pop("split", {"train": 1, "validation": 0, "test": 0})
    dataset = Dataset.model_validate({"sources": sources, "split": split, **options})
    files = read_files(model)
    previews: list[Preview] = []
    skipped: list[Skipped] = []
    builder = Builder(
        Plan(dataset, files, NOW),
        previews=None,
        on_preview=previews.append,
        on_skipped=skipped.append,
        processes=processes,
    )
    opened = [OpenedSource(source, open_source(source.uri, purpose="data")) for source in sources]
    return Built(builder.build(opened, folder), previews, skipped, folder, Tokeniser(files))
