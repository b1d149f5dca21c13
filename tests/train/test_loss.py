"""The loss of trained tokens against the textbook's."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from finetune_trainer.train import loss as losses
from finetune_trainer.train.loss import chunk_rows, sum_loss

VOCABULARY = 211
Setting = tuple[torch.Tensor, torch.Tensor, torch.nn.Linear]
"""Hidden states, targets and the output head."""


@pytest.fixture
def setting() -> Setting:
    torch.manual_seed(1)
    hidden = torch.randn(77, 24, requires_grad=True)
    head = torch.nn.Linear(24, VOCABULARY, bias=False)
    return hidden, torch.randint(0, VOCABULARY, (77,)), head


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("rows", [1, 10, 77, 1000])
def test_loss_and_gradient_in_chunks_of_any_size(
    setting: Setting, frozen: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, targets, head = setting
    head.requires_grad_(not frozen)
    expected = cross_entropy(head(hidden), targets, reduction="sum")
    (slope,) = torch.autograd.grad(expected * 0.25, hidden)
    monkeypatch.setattr(losses, "chunk_rows", lambda vocabulary: rows)
    ours = sum_loss(hidden, targets, head, vocabulary=VOCABULARY, frozen_head=frozen)
    torch.testing.assert_close(ours, expected)
    (got,) = torch.autograd.grad(ours * 0.25, hidden)
    torch.testing.assert_close(got, slope)


def test_a_trained_head_gets_its_gradient(setting: Setting) -> None:
    hidden, targets, head = setting
    expected = torch.autograd.grad(cross_entropy(head(hidden), targets, reduction="sum"), head.weight)
    ours = sum_loss(hidden, targets, head, vocabulary=VOCABULARY, frozen_head=False)
    torch.testing.assert_close(torch.autograd.grad(ours, head.weight), expected)


def test_nothing_to_learn_is_zero_with_a_zero_gradient(setting: Setting) -> None:
    hidden, _, head = setting
    ours = sum_loss(hidden, torch.empty(0, dtype=torch.int64), head, vocabulary=VOCABULARY, frozen_head=True)
    assert ours.item() == 0.0
    (got,) = torch.autograd.grad(ours, hidden)
    assert not got.any()


def test_no_logits_of_the_whole_row_are_made() -> None:
    seen: list[int] = []
    head = torch.nn.Linear(8, 128_000, bias=False).requires_grad_(False)

    def watched(part: torch.Tensor) -> torch.Tensor:
        seen.append(part.shape[0])
        logits: torch.Tensor = head(part)
        return logits

    hidden = torch.randn(300, 8, requires_grad=True)
    total = sum_loss(
        hidden, torch.zeros(300, dtype=torch.int64), watched, vocabulary=128_000, frozen_head=True
    )
    total.backward()
    assert sum(seen) == 300
    assert max(seen) == chunk_rows(128_000) < 150
