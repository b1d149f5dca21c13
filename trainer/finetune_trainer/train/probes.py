"""Questions that are put to the model itself before a run relies on the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from finetune_trainer.config import Event, RunConfig, Warned
from finetune_trainer.train.attention import PACKED_EAGER, UnpackableError, is_flash
from finetune_trainer.train.collate import MicroBatch, pack
from finetune_trainer.train.load import Base, use_padding
from finetune_trainer.train.step import Split
from finetune_trainer.train.world import World

_PROBE_TOKENS = 48


def settle_packing(
    base: Base, run: RunConfig, split: Split, emit: Callable[[Event], None], world: World
) -> Base:
    """Pack only where that was shown to keep examples apart in this very model, by either attention.

    A collective; may change the model's attention.
    """
    # Close to the tolerance, unlike processors may come to unlike answers; the layout has to be one.
    if base.packs and world.agree(packing_is_safe(base.model, split, world)):
        return base
    if base.packs and run.model.attention == "SDPA":
        base.model.set_attn_implementation(PACKED_EAGER)
        if world.agree(packing_is_safe(base.model, split, world)):
            return base
    if run.dataset.packing and world.leader:
        emit(
            Warned(
                message="this architecture cannot keep packed examples apart, so each has a row of its own",
                hint="set dataset.packing: false to silence this",
            )
        )
    return use_padding(base, run)


@torch.no_grad()
def packing_is_safe(model: PreTrainedModel, split: Split, world: World) -> bool:
    """Whether two examples in one row give the states that each gives alone, by attention that we know.

    Compares against the model's own attention over each example, so an architecture that asks its
    attention for something ours does not do (sinks, capped scores, biases) fails here, and not in
    what it learns. A collective at ZeRO stage 3.
    """
    first, second = split.tokens(0)[:_PROBE_TOKENS], split.tokens(len(split) - 1)[:_PROBE_TOKENS]
    pair = pack([(tokens, np.ones(len(tokens), dtype=np.bool_)) for tokens in (first, second)])
    was_training = model.training
    model.eval()
    try:
        together = _states(model, pair.to(world.device))
        packed = model.config._attn_implementation
        model.set_attn_implementation("eager")
        alone = torch.cat(
            [
                _states(
                    model, {"input_ids": torch.from_numpy(tokens.astype(np.int64))[None].to(world.device)}
                )
                for tokens in (first, second)
            ]
        )
        model.set_attn_implementation(packed)
    except (UnpackableError, TypeError):
        # TypeError: a forward that takes no boundaries, as remote code often does not.
        return False
    finally:
        model.train(was_training)
    scale = alone.abs().max()
    tolerance = 1e-3 if alone.dtype == torch.float32 else 5e-2
    return bool((together - alone).abs().max() <= tolerance * scale)


def _states(model: PreTrainedModel, batch: MicroBatch | dict[str, Any]) -> torch.Tensor:
    inputs = batch.inputs(flash=is_flash(model)) if isinstance(batch, MicroBatch) else batch
    hidden: torch.Tensor = model.get_decoder()(**inputs, use_cache=False).last_hidden_state
    return hidden[0]
