from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.building import Built, build
from tests.fixtures.tokenizers import byte_level


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a tiny tokenizer and a ChatML template."""
    return byte_level(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def prepared(tiny: Path, tmp_path: Path) -> Callable[..., Built]:
    """Prepare files with the tiny tokenizer: `prepared(path, form="Alpaca", template="ChatML", ...)`."""

    def run(*paths: Path, model: Path = tiny, **options: Any) -> Built:
        return build(list(paths), model, tmp_path / "prepared", **options)

    return run
