from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.data import arrays
from finetune_trainer.data.arrays import Examples, Spool


def spooled(folder: Path, lengths: list[int], parts: list[int]) -> list[int]:
    spool = Spool(folder)
    for row, length in enumerate(lengths):
        tokens = np.arange(length, dtype=np.int32) + 100 * row
        trained = np.arange(length) % 2 == 1
        spool.add(tokens, trained, np.array([length], dtype=np.int64), np.array([row], dtype=np.int64))
    counts = spool.write(folder, ("train", "validation", "test"), np.array(parts, dtype=np.int8))
    spool.close()
    return counts


@pytest.mark.parametrize("copied", [1, 5, 1 << 20])
def test_examples_come_back_by_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int) -> None:
    monkeypatch.setattr(arrays, "_COPY", copied)
    counts = spooled(tmp_path, [3, 5, 2, 4], [0, 1, 0, 0])
    assert counts == [1 + 1 + 2, 2, 0]
    train, validation, test = (Examples(tmp_path / name) for name in ("train", "validation", "test"))
    assert [len(split) for split in (train, validation, test)] == [3, 1, 0]
    assert train.rows.tolist() == [0, 2, 3]
    assert train.lengths.tolist() == [3, 2, 4]
    assert train.trained_counts.tolist() == [1, 1, 2]
    assert train.tokens(1).tolist() == [200, 201]
    assert train.trained(1).tolist() == [False, True]
    assert train.tokens(0).dtype == np.int32
    assert isinstance(train.tokens(0), np.memmap)
    assert validation.tokens(0).tolist() == [100, 101, 102, 103, 104]
    assert test.trained_counts.tolist() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test", "train", "validation"]


def test_damage_is_noticed(tmp_path: Path) -> None:
    spooled(tmp_path, [3, 5], [0, 0])
    np.save(tmp_path / "train" / "tokens.npy", np.zeros(7, dtype=np.int32))
    with pytest.raises(RunError, match="lengths differ") as caught:
        Examples(tmp_path / "train")
    assert caught.value.reason is ExitReason.STORAGE_UNAVAILABLE
    (tmp_path / "train" / "tokens.npy").write_bytes(b"")
    with pytest.raises(RunError, match="damaged"):
        Examples(tmp_path / "train")
