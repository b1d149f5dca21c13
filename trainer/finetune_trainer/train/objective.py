"""What is minimised: the model and the loss of its trained tokens as one module for the engine."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from finetune_trainer.train.collate import MicroBatch
from finetune_trainer.train.loss import sum_loss


class Objective(torch.nn.Module):
    """Maps a micro batch to the sum of its trained tokens' negative log-likelihoods (nats, fp32).

    Args:
        model: what is trained, adapters attached.
        causal: the causal LM inside `model` (the same object where nothing wraps it).
        frozen_head: nothing in the output head is trained, and its weights are whole on this rank.
    """

    def __init__(self, model: PeftModel, causal: PreTrainedModel, *, frozen_head: bool) -> None:
        super().__init__()
        self.model = model
        # Held in a list so that the parameters are not registered twice.
        self._causal = [causal]
        self.frozen_head = frozen_head
        self.own_head = True
        """Whether head() gives the model's own logits; probe() finds out."""

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
        logits: torch.Tensor = self.causal.get_output_embeddings()(hidden)
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
        hidden = self.causal.get_decoder()(**batch.inputs(), use_cache=False).last_hidden_state
        return sum_loss(
            hidden.flatten(0, 1)[batch.predicting],
            batch.targets,
            self.head,
            vocabulary=self.causal.config.get_text_config().vocab_size,
            frozen_head=self.frozen_head,
        )

    def _whole_logits(self, batch: MicroBatch) -> torch.Tensor:
        logits = self.causal(**batch.inputs(), use_cache=False).logits
        return sum_loss(
            logits.flatten(0, 1)[batch.predicting],
            batch.targets,
            _identity,
            vocabulary=logits.shape[-1],
            frozen_head=False,
        )

    @torch.no_grad()
    def probe(self, batch: MicroBatch) -> bool:
        """Compare head() with the model's own logits once, and keep to the model's where they differ.

        An architecture may do something to its logits that head() does not know.
        """
        training = self.training
        self.eval()
        inputs: dict[str, Any] = batch.inputs()
        hidden = self.causal.get_decoder()(**inputs, use_cache=False).last_hidden_state
        ours = self.head(hidden.flatten(0, 1)[:16]).float()
        own = self.causal(**inputs, use_cache=False).logits.flatten(0, 1)[:16].float()
        self.train(training)
        self.own_head = bool(torch.allclose(ours, own, rtol=1e-2, atol=1e-2))
        return self.own_head


def _identity(logits: torch.Tensor) -> torch.Tensor:
    return logits
