"""What is minimised: the model and the loss of its trained tokens as one module for the engine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from finetune_trainer.train.arithmetic import project
from finetune_trainer.train.attention import is_flash
from finetune_trainer.train.collate import MicroBatch
from finetune_trainer.train.loss import sum_loss


class Objective(torch.nn.Module):
    """Maps a micro batch to the sum of its trained tokens' negative log-likelihoods (nats, fp32).

    Args:
        model: what is trained, adapters attached.
        causal: the causal LM inside `model`.
        split: parameters are split over the ranks (ZeRO stage 3). The ranks' rows hold different
            numbers of trained tokens, and a module that one rank calls more often than another
            leaves the others waiting for its weights; so the head's are gathered once a forward pass.
    """

    def __init__(self, model: PeftModel, causal: PreTrainedModel, *, split: bool) -> None:
        super().__init__()
        self.model = model
        # Held in a list so that the parameters are not registered twice.
        self._causal = [causal]
        self._split = split
        output = causal.get_output_embeddings()
        self._frozen_head = not any(parameter.requires_grad for parameter in output.parameters())
        self.own_head = not split or (type(output) is torch.nn.Linear and self._frozen_head)
        """Whether the loss is taken through head(); else from the logits that the model itself gives."""

    @property
    def causal(self) -> PreTrainedModel:
        """The causal LM."""
        return self._causal[0]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, hidden size]` to logits `[n, vocabulary]`.

        Beside the matrix product some families scale or cap their logits: Cohere multiplies by
        `logit_scale`, Granite divides by `logits_scaling`, Gemma 2 caps with a tanh.
        """
        config = self.causal.config.get_text_config()
        output = self.causal.get_output_embeddings()
        logits: torch.Tensor = (
            project(hidden, output.weight, output.bias)
            if type(output) is torch.nn.Linear and self._frozen_head
            else output(hidden)
        )
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (scaling := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / scaling
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Sum of the losses of `batch`'s trained tokens, a scalar."""
        if not self.own_head:
            return self._whole_logits(batch)
        hidden = self.causal.get_decoder()(**self._inputs(batch), use_cache=False).last_hidden_state
        with self._head_at_hand():
            return sum_loss(
                hidden.flatten(0, 1)[batch.predicting],
                batch.targets,
                self.head,
                vocabulary=self.causal.config.get_text_config().vocab_size,
                frozen_head=self._frozen_head,
            )

    def _whole_logits(self, batch: MicroBatch) -> torch.Tensor:
        logits = self.causal(**self._inputs(batch), use_cache=False).logits
        return sum_loss(
            logits.flatten(0, 1)[batch.predicting],
            batch.targets,
            _identity,
            vocabulary=logits.shape[-1],
            frozen_head=False,
        )

    def _inputs(self, batch: MicroBatch) -> dict[str, Any]:
        return batch.inputs(flash=is_flash(self.causal))

    def _head_at_hand(self) -> AbstractContextManager[object]:
        """While it lasts, the head's weights are whole on this rank. A collective at stage 3."""
        if not self._split:
            return nullcontext()
        from deepspeed.runtime.zero import GatheredParameters

        gathered: AbstractContextManager[object] = GatheredParameters(
            list(self.causal.get_output_embeddings().parameters())
        )
        return gathered

    @torch.no_grad()
    def probe(self, batch: MicroBatch) -> None:
        """Compare head() with the model's own logits once, and keep to the model's where they differ.

        An architecture may do something to its logits that head() does not know.
        """
        if not self.own_head:
            return
        training = self.training
        self.eval()
        inputs = self._inputs(batch)
        hidden = self.causal.get_decoder()(**inputs, use_cache=False).last_hidden_state
        with self._head_at_hand():
            ours = self.head(hidden.flatten(0, 1)[:16]).float()
        own = self.causal(**inputs, use_cache=False).logits.flatten(0, 1)[:16].float()
        self.train(training)
        self.own_head = bool(torch.allclose(ours, own, rtol=1e-2, atol=1e-2))


def _identity(logits: torch.Tensor) -> torch.Tensor:
    return logits
