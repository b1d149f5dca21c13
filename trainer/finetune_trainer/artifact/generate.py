"""Greedy or sampled answers, one prompt at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from transformers import GenerationConfig

from finetune_trainer.artifact.prompts import Held, Reader
from finetune_trainer.config import Sample

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer

_MORE, _MOST = 16, 64
"""New tokens of a sample: so many more than expected, and never more than this."""


@torch.inference_mode()
def answer(
    model: PeftModel,
    prompt: Sequence[int],
    *,
    stops: Sequence[int],
    most: int,
    temperature: float = 0.0,
    streamer: BaseStreamer | None = None,
) -> list[int]:
    """Let the model go on after a prompt.

    Args:
        model: base and adapter.
        prompt: token ids.
        stops: ids that end the answer; they are not part of what is returned.
        most: new tokens at most.
        temperature: 0 takes the likeliest token each time.
        streamer: is given the tokens as they come.
    """
    ids = torch.tensor([list(prompt)], device=model.device)
    sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
    config = GenerationConfig(
        max_new_tokens=most,
        eos_token_id=list(stops) or None,
        pad_token_id=stops[0] if stops else 0,
        use_cache=True,
        **sampling,
    )
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=streamer
    )
    new: list[int] = out[0, ids.shape[1] :].tolist()
    return new[:-1] if new and new[-1] in stops else new


def sample(model: PeftModel, held: Held, reader: Reader, stops: Sequence[int]) -> Sample:
    """Answer a held-out prompt greedily, without the adapter and with it."""
    most = min(len(held.expected) + _MORE, _MOST)
    with model.disable_adapter():
        before = answer(model, held.prompt, stops=stops, most=most)
    after = answer(model, held.prompt, stops=stops, most=most)
    return Sample(
        prompt=reader.prompt(held.prompt),
        expected=reader.text(held.expected),
        before=reader.text(before),
        after=reader.text(after),
    )
