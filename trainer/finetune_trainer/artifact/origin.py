"""What the base model is called: by us, by transformers and PEFT, and by a server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from finetune_trainer.config import Model
from finetune_trainer.storage.hubs import Repository
from finetune_trainer.storage.uri import HUB_SCHEMES, Location

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Origin:
    """Where the base model comes from."""

    uri: str
    """As in the job, except that a relative `file://` path is made absolute."""
    name: str
    """What other tools load it by: a hub's id, a path of this machine, or the URI where they cannot."""
    revision: str | None = None
    """Branch, tag or commit that was asked for; hubs only."""
    commit: str | None = None
    """The commit that was loaded, where the hub says so."""

    @property
    def pinned(self) -> str | None:
        """The most exact revision known; None means the repository's default, or that there are none."""
        return self.commit or (self.revision if self.revision != "main" else None)


def origin(model: Model, folder: Path) -> Origin:
    """Describe the base model of a job that was fetched into `folder`.

    Raises:
        RunError: InvalidConfiguration, the URI is none.
    """
    location = Location.parse(model.uri)
    if location.scheme in HUB_SCHEMES:
        repository = Repository.parse(location, model.revision)
        # A folder inside of a repository has no id that another tool would understand.
        name = model.uri if repository.path else repository.name
        return Origin(model.uri, name, repository.revision, _commit(folder))
    if location.scheme == "file":
        return Origin(f"file://{location.folder}", str(location.folder))
    return Origin(model.uri, model.uri)


def _commit(folder: Path) -> str | None:
    """The commit in the path of a snapshot in the Hugging Face cache (`.../snapshots/<commit>/...`)."""
    parts = folder.parts
    if "snapshots" not in parts[:-1]:
        return None
    commit = parts[parts.index("snapshots") + 1]
    return commit if _COMMIT.fullmatch(commit) else None
