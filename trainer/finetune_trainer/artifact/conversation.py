"""Questions to a loaded adapter, answered into the terminal as the words come."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from peft import PeftModel
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TextStreamer

from finetune_trainer.artifact.assemble import GENERATION
from finetune_trainer.artifact.base import load_adapter, load_base
from finetune_trainer.artifact.generate import answer
from finetune_trainer.artifact.locate import Published
from finetune_trainer.config import ExitReason, RunError


@dataclass(frozen=True)
class Manner:
    """How to answer."""

    system: str
    """System prompt; empty for none of our own."""
    max_tokens: int
    temperature: float


class Conversation:
    """A base model with a published adapter on it, ready to be asked."""

    def __init__(
        self,
        model: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        stops: list[int],
        manner: Manner,
        chat: bool,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._stops = stops
        self._manner = manner
        self._chat = chat

    @classmethod
    def open(cls, published: Published, base: Path, manner: Manner, *, trust_remote_code: bool) -> Self:
        """Load everything.

        Raises:
            RunError: ModelUnavailable, the base model cannot be loaded; InvalidConfiguration, the
                adapter does not fit it.
        """
        metadata = published.metadata
        model = load_base(
            base,
            precision=metadata.precision,
            quantization=metadata.quantization,
            trust_remote_code=trust_remote_code,
        )
        tuned = load_adapter(model, published.folder)
        tokenizer = AutoTokenizer.from_pretrained(published.folder, trust_remote_code=trust_remote_code)
        return cls(tuned, tokenizer, _stops(published.folder), manner, metadata.dataset.chat)

    def stream(self, question: str, *, tuned: bool) -> None:
        """Print the answer while it is made.

        Args:
            question: what to ask.
            tuned: with the adapter, or the base model alone.

        Raises:
            RunError: InvalidConfiguration, the chat template refuses the question.
        """
        streamer = TextStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        with contextlib.nullcontext() if tuned else self._model.disable_adapter():
            answer(
                self._model,
                self._prompt(question),
                stops=self._stops,
                most=self._manner.max_tokens,
                temperature=self._manner.temperature,
                streamer=streamer,
            )

    def _prompt(self, question: str) -> list[int]:
        system = self._manner.system
        if not self._chat or self._tokenizer.chat_template is None:
            return list(self._tokenizer(f"{system}\n\n{question}" if system else question).input_ids)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates raise what they like, by way of jinja2
            raise RunError(
                ExitReason.INVALID_CONFIGURATION,
                f"the chat template refuses this conversation: {error}",
                "try without --system",
            ) from error
        return list(self._tokenizer(str(text), add_special_tokens=False).input_ids)


def _stops(folder: Path) -> list[int]:
    """Ids that end an answer, as published beside the adapter."""
    path = folder / GENERATION
    found = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
    return found if isinstance(found, list) else [] if found is None else [found]
