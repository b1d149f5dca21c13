"""Examples to tensors."""

from collections.abc import Sequence

import numpy as np
import torch

from finetune_trainer.train.collate import Example, pack, pad, untrained


def example(tokens: Sequence[int], trained: Sequence[int]) -> Example:
    return np.array(tokens, dtype=np.int32), np.array(trained, dtype=np.bool_)


TWO = [example([5, 6, 7], [0, 1, 1]), example([8, 9], [0, 1])]


def test_pack_lays_end_to_end() -> None:
    batch = pack(TWO)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.boundaries is not None
    assert batch.boundaries.tolist() == [0, 3, 5]
    assert batch.attention_mask is None
    assert batch.predicting.tolist() == [0, 1, 3]
    assert batch.targets.tolist() == [6, 7, 9]
    assert batch.inputs()["max_length_q"] == 3


def test_boundaries_stay_on_the_cpu_unless_kernels_read_them() -> None:
    batch = pack(TWO).to(torch.device("meta"))
    assert batch.input_ids.is_meta
    assert batch.targets.is_meta
    assert batch.boundaries is not None
    assert batch.boundaries.tolist() == [0, 3, 5]
    assert not batch.inputs()["cu_seq_lens_q"].is_meta
    assert batch.inputs(flash=True)["cu_seq_lens_q"].is_meta
    assert pad(TWO, padding=0).to(torch.device("meta")).boundaries is None


def test_an_example_is_never_predicted_from_the_one_before_it() -> None:
    batch = pack([example([1, 2], [1, 1]), example([3, 4], [1, 1])])
    assert batch.targets.tolist() == [2, 4]


def test_pad_fills_up_on_the_right() -> None:
    batch = pad(TWO, padding=99)
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 99]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.boundaries is None
    flat = batch.input_ids.flatten()
    assert flat[batch.predicting + 1].tolist() == batch.targets.tolist() == [6, 7, 9]


def test_untrained_keeps_the_tokens_and_learns_nothing() -> None:
    batch = pack([untrained(TWO[0])])
    assert batch.input_ids.tolist() == [[5, 6, 7]]
    assert batch.targets.numel() == 0
    assert batch.targets.dtype == torch.int64
