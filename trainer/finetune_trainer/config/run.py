"""RunConfig: everything a stage needs to know, resolved, in plain numbers.

The job file speaks to people (camelCase, fractions as strings, defaults left out);
a RunConfig speaks to stages: every default is filled in, every fraction is a number.
It is written once as `run.json` and read by every stage of every attempt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

TEMPLATES = (
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
)
"""Names of the prompt templates; `Model` is the one that the base model brings along."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Part):
    """The base model."""

    uri: str
    revision: str = "main"
    credentials: str | None = None
    """Name of the credentials folder (a Kubernetes Secret's name), or None for the environment."""
    attention: Literal["SDPA", "Eager", "Flash"] = "SDPA"
    trust_remote_code: bool = False


class Source(_Part):
    """One place that rows come from."""

    uri: str
    format: Literal["Auto", "Alpaca", "ShareGPT", "Messages", "PromptCompletion", "Text"] = "Auto"
    credentials: str | None = None


class Split(_Part):
    """Shares of train, validation and test; only their proportion counts."""

    train: int = Field(default=8, ge=1)
    validation: int = Field(default=1, ge=0)
    test: int = Field(default=1, ge=0)
    seed: int = 42


class Dataset(_Part):
    """How rows become token sequences."""

    sources: list[Source] = Field(min_length=1)
    template: str = "Model"
    system_prompt: str = ""
    max_length: int = Field(default=2048, ge=1)
    overlong: Literal["Truncate", "Drop", "Fail"] = "Truncate"
    loss: Literal["Response", "LastTurn", "All"] = "Response"
    packing: bool = True
    split: Split = Split()

    @field_validator("template")
    @classmethod
    def _template_exists(cls, template: str) -> str:
        if template not in TEMPLATES:
            raise ValueError(f"unknown template {template!r}; there are {', '.join(TEMPLATES)}")
        return template


class Quantization(_Part):
    """How the base model's weights are held under QLoRA."""

    type: Literal["NF4"] = "NF4"
    double_quantization: bool = True


class Adapter(_Part):
    """The low-rank adapter; `quantization` is set exactly when the method is QLoRA."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.05, ge=0, lt=1)
    target_modules: list[str] = ["all-linear"]
    rank_stabilized: bool = False
    quantization: Quantization | None = None


class Training(_Part):
    """The optimisation; exactly one of `epochs` and `max_steps` is set."""

    epochs: float | None = 3.0
    max_steps: int | None = None
    learning_rate: float = Field(default=1e-4, gt=0)
    scheduler: Literal["Cosine", "Linear", "Constant"] = "Cosine"
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_gradient_norm: float = Field(default=1.0, ge=0)
    global_batch_size: int = Field(default=32, ge=1)
    """Rows (examples, not packed rows) per optimizer step, over all ranks."""
    micro_batch_size: int | None = None
    """Rows per forward pass of one rank; None lets the trainer choose."""
    precision: Literal["BF16", "FP16", "FP32"] = "BF16"
    gradient_checkpointing: bool = True
    seed: int = 42
    log_steps: int = Field(default=10, ge=1)
    evaluation_steps: int = Field(default=500, ge=1)


class CheckpointPolicy(_Part):
    """A checkpoint every `steps` optimizer steps; the newest `keep` are kept."""

    steps: int = Field(default=500, ge=1)
    keep: int = Field(default=3, ge=1)


class Workers(_Part):
    """The shape of the gang."""

    replicas: int = Field(default=1, ge=1)
    gpus_per_worker: int = Field(default=1, ge=0)
    """0 means the CPU with one rank per worker."""

    @property
    def ranks_per_worker(self) -> int:
        """Ranks that each worker starts."""
        return max(1, self.gpus_per_worker)

    @property
    def world_size(self) -> int:
        """Ranks over all workers."""
        return self.replicas * self.ranks_per_worker


class DeepSpeed(_Part):
    """ZeRO stage and offload; `config` overlays expert keys."""

    stage: Literal["Auto", 0, 1, 2, 3] = "Auto"
    offload_optimizer: Literal["None", "CPU"] = "None"
    offload_parameters: Literal["None", "CPU"] = "None"
    config: dict[str, object] = {}


class Output(_Part):
    """Where prepared data, checkpoints and the adapter go: `<uri>/<uid>/...` (see Layout)."""

    uri: str
    credentials: str | None = None
    merge: bool = False


class Retry(_Part):
    """Bounds on waiting."""

    hang_seconds: int = Field(default=900, ge=1)
    rendezvous_seconds: int = Field(default=600, ge=1)


class RunConfig(_Part):
    """One run of one job. `attempt` counts from 1; `uid` names the run's folder in the output."""

    version: Literal[1] = 1
    name: str
    namespace: str = "default"
    uid: str
    attempt: int = Field(default=1, ge=1)
    model: Model
    dataset: Dataset
    adapter: Adapter = Adapter()
    training: Training = Training()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    workers: Workers = Workers()
    deepspeed: DeepSpeed = DeepSpeed()
    output: Output
    retry: Retry = Retry()

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Read `run.json`.

        Raises:
            OSError: the file cannot be read.
            pydantic.ValidationError: it is not a RunConfig of this version.
        """
        return cls.model_validate_json(path.read_bytes())

    def dump(self, path: Path) -> None:
        """Write `run.json`, defaults included, so that a later version reads what this one meant."""
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
