"""Which examples meet in an optimizer step, and where they are computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from finetune_trainer.train.batches import chunk, schedule, spread

lengths_of_batches = st.lists(st.integers(1, 300), min_size=1, max_size=80).map(
    lambda values: np.array(values, dtype=np.int64)
)


@pytest.mark.parametrize(
    ("examples", "global_batch", "epochs", "max_steps", "steps"),
    [
        (13920, 32, 3.0, None, 1305),
        (64, 8, 4.0, None, 32),
        (10, 4, 1.0, None, 3),
        (10, 4, 0.5, None, 2),
        (10, 100, 1.0, None, 1),
        (3, 2, 0.01, None, 1),
        (10, 4, None, 7, 7),
    ],
)
def test_number_of_steps(
    examples: int, global_batch: int, epochs: float | None, max_steps: int | None, steps: int
) -> None:
    plan = schedule(examples, global_batch=global_batch, epochs=epochs, max_steps=max_steps, seed=1)
    assert plan.total_steps == steps


def test_every_example_is_seen_once_an_epoch() -> None:
    plan = schedule(23, global_batch=5, epochs=3, max_steps=None, seed=7)
    seen = [index for step in range(plan.total_steps) for index in plan.batch(step)]
    assert len(seen) == 69
    for epoch in range(3):
        assert sorted(seen[epoch * 23 : (epoch + 1) * 23]) == list(range(23))
    assert seen[:23] != seen[23:46]
    assert [len(plan.batch(step)) for step in range(plan.total_steps)] == [5] * 13 + [4]


def test_a_batch_larger_than_an_epoch_wraps() -> None:
    plan = schedule(3, global_batch=8, epochs=None, max_steps=2, seed=1)
    batch = plan.batch(0) + plan.batch(1)
    assert len(batch) == 16
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]


def test_the_order_follows_the_seed() -> None:
    one, same, other = (
        schedule(50, global_batch=50, epochs=1, max_steps=None, seed=seed).batch(0) for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize(("epochs", "examples"), [(None, 5), (1.0, 0)])
def test_nothing_to_do_is_refused(epochs: float | None, examples: int) -> None:
    with pytest.raises(ValueError, match=r"epochs|empty"):
        schedule(examples, global_batch=1, epochs=epochs, max_steps=None, seed=1)


@given(lengths_of_batches, st.integers(1, 5), st.integers(1, 400))
def test_spread_keeps_every_example_and_the_limit(
    lengths: NDArray[np.int64], ranks: int, row_tokens: int
) -> None:
    rows = spread(lengths, ranks=ranks, row_tokens=row_tokens)
    flat = [position for rank in rows for row in rank for position in row]
    assert sorted(flat) == list(range(len(lengths)))
    assert len(rows) == ranks
    assert len({len(rank) for rank in rows}) == 1
    limit = max(row_tokens, lengths.max())
    assert all(sum(lengths[row]) <= limit for rank in rows for row in rank if row)


def test_spread_gives_ranks_equal_work() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 256).astype(np.int64) + 1
    rows = spread(lengths, ranks=4, row_tokens=4096)
    work = [sum(int(lengths[row].sum()) for row in rank) for rank in rows]
    assert max(work) <= 1.02 * min(work)


def test_spread_of_a_large_batch_of_awkward_lengths_is_quick_to_find() -> None:
    # No two of them fit in one row: a search that adds one row at a time would take minutes.
    rows = spread(np.full(20_000, 600, dtype=np.int64), ranks=1, row_tokens=1000)
    assert len(rows[0]) == 20_000


@given(lengths_of_batches, st.integers(1, 5), st.integers(1, 9))
def test_chunk_keeps_every_example_and_the_micro_batch(
    lengths: NDArray[np.int64], ranks: int, micro_batch: int
) -> None:
    rows = chunk(lengths, ranks=ranks, micro_batch=micro_batch)
    assert sorted(p for rank in rows for row in rank for p in row) == list(range(len(lengths)))
    assert len({len(rank) for rank in rows}) == 1
    assert all(len(row) <= micro_batch for rank in rows for row in rank)
