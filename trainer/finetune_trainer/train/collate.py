"""Examples to tensors: one packed row without padding, or a padded rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class MicroBatch:
    """The input of one forward pass.

    Attributes:
        input_ids: int64 `[rows, tokens]`; one row when packed.
        position_ids: int64, the same shape, from 0 in each example.
        boundaries: int32 `[examples + 1]` where a packed row's examples begin and end, else None; on
            the CPU wherever the rest is.
        attention_mask: int64, 1 on tokens and 0 on padding, where padded, else None.
        predicting: int64 `[trained]`, flat positions whose hidden state predicts a trained token.
        targets: int64 `[trained]`, those tokens.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    boundaries: torch.Tensor | None
    attention_mask: torch.Tensor | None
    predicting: torch.Tensor
    targets: torch.Tensor

    def inputs(self, *, flash: bool = False) -> dict[str, Any]:
        """Keyword arguments of the model's forward.

        Args:
            flash: the model uses FlashAttention, whose kernels read the boundaries on the device.
        """
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "position_ids": self.position_ids}
        if self.boundaries is not None:
            boundaries = self.boundaries.to(self.input_ids.device) if flash else self.boundaries
            inputs["cu_seq_lens_q"] = inputs["cu_seq_lens_k"] = boundaries
            longest = int(self.boundaries.diff().max())
            inputs["max_length_q"] = inputs["max_length_k"] = longest
        if self.attention_mask is not None:
            inputs["attention_mask"] = self.attention_mask
        return inputs

    def to(self, device: torch.device) -> MicroBatch:
        """The same batch on `device`, boundaries apart.

        Packed attention cuts by them on the CPU: on the device, every layer would have to wait for it.
        """
        if device.type == "cpu":
            return self
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor) and name != "boundaries"
        }
        return replace(self, **moved)


Example = tuple[NDArray[np.int32], NDArray[np.bool_]]
"""Tokens and the flags of those that are trained, both `[tokens]`."""


def pack(examples: Sequence[Example]) -> MicroBatch:
    """Lay examples end to end in one row `[1, tokens]`."""
    lengths = [len(tokens) for tokens, _ in examples]
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([tokens for tokens, _ in examples]).astype(np.int64)
    trained = np.concatenate([flags for _, flags in examples])
    # The first token of an example would be predicted from the example before it.
    trained[boundaries[:-1]] = False
    (where,) = np.nonzero(trained)
    return MicroBatch(
        input_ids=torch.from_numpy(tokens)[None],
        position_ids=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))[None],
        boundaries=torch.from_numpy(boundaries.astype(np.int32)),
        attention_mask=None,
        predicting=torch.from_numpy(where - 1),
        targets=torch.from_numpy(tokens[where]),
    )


def pad(examples: Sequence[Example], padding: int) -> MicroBatch:
    """One example a row, filled up on the right with the token `padding`."""
    longest = max(len(tokens) for tokens, _ in examples)
    ids = np.full((len(examples), longest), padding, dtype=np.int64)
    mask = np.zeros_like(ids)
    trained = np.zeros(ids.shape, dtype=np.bool_)
    for row, (tokens, flags) in enumerate(examples):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        trained[row, 1 : len(tokens)] = flags[1:]
    (where,) = np.nonzero(trained.reshape(-1))
    return MicroBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=torch.from_numpy(np.broadcast_to(np.arange(longest), ids.shape).copy()),
        boundaries=None,
        attention_mask=torch.from_numpy(mask),
        predicting=torch.from_numpy(where - 1),
        targets=torch.from_numpy(ids.reshape(-1)[where]),
    )


def untrained(example: Example) -> Example:
    """The example with nothing to learn, for a rank that has no row in a step all ranks must take."""
    tokens, flags = example
    return tokens, np.zeros_like(flags)
