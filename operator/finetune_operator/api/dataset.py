"""spec.dataset: which rows are learned, and how they become token sequences."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from finetune_operator.api.base import INT32_MAX, ObjectName, Part
from finetune_operator.api.uris import SourceUri

# The trainer keeps the same names as `finetune_trainer.config.TEMPLATES` (a test compares them). They are
# spelled out here because a Literal has to be, and because importing that package costs a job file's
# validation a fifth of its time.
Template = Literal[
    "Model",
    "Alpaca",
    "AlpacaChinese",
    "Vicuna",
    "Zephyr",
    "Llama2",
    "Llama3",
    "Llama4",
    "ChatML",
    "Qwen",
    "Qwen3",
    "Mistral",
    "Gemma",
    "Phi3",
    "Phi4",
    "DeepSeek",
    "DeepSeekR1",
    "GLM4",
    "Yi",
    "InternLM2",
    "Baichuan2",
    "Falcon",
    "CommandR",
    "Granite",
    "OLMo",
    "SmolLM",
    "Default",
]


class Source(Part):
    """One place that rows come from: a file, a folder or prefix, or a data set of a hub."""

    uri: SourceUri
    """Where the rows are: hf://datasets/, modelscope://, s3://, gs://, az:// or pvc://."""
    format: Literal["Auto", "Alpaca", "ShareGPT", "Messages", "PromptCompletion", "Text"] = "Auto"
    """What a row looks like; Auto finds out."""
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with the keys that reading the rows needs."""


class Split(Part):
    """Shares of train, validation and test; only their proportion counts."""

    train: Annotated[int, Field(ge=1, le=INT32_MAX)] = 8
    """Share of the rows that are learned."""
    validation: Annotated[int, Field(ge=0, le=INT32_MAX)] = 1
    """Share of the rows that are evaluated every evaluationSteps and at the end; 0 for none."""
    test: Annotated[int, Field(ge=0, le=INT32_MAX)] = 1
    """Share of the rows that are evaluated before the first step and after the last one; 0 for none."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    """The same seed parts the same rows in the same way."""


class Dataset(Part):
    """The rows to learn and how they become token sequences."""

    sources: Annotated[list[Source], Field(min_length=1, max_length=64)]
    """Where the rows come from; all sources are read in this order."""
    template: Template = "Model"
    """Prompt template; Model is the one that the base model brings along."""
    system_prompt: Annotated[str, Field(max_length=16384)] = ""
    """System prompt of rows that bring none."""
    max_length: Annotated[int, Field(ge=1, le=1048576)] = 2048
    """Tokens of the longest example."""
    overlong: Literal["Truncate", "Drop", "Fail"] = "Truncate"
    """What happens to an example above maxLength."""
    loss: Literal["Response", "LastTurn", "All"] = "Response"
    """Which tokens are learned: all answers, the last answer, or everything."""
    packing: bool = True
    """Put several examples into one forward pass, without padding and apart from each other."""
    split: Split = Field(default_factory=Split.model_construct)
    """Shares of train, validation and test."""
