from __future__ import annotations

from pathlib import Path

import pytest

from finetune_trainer.artifact.origin import Origin, origin
from finetune_trainer.artifact.serve import (
    RANKS,
    Serving,
    max_lora_rank,
    serve_command,
    serve_merged_command,
)
from finetune_trainer.config import Model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOCAL = Origin("file:///models/tiny", "/models/tiny")
HUB = Origin("hf://org/model", "org/model", "main")
SERVING = Serving("bot", 16)


@pytest.mark.parametrize(
    ("uri", "folder", "expected"),
    [
        ("hf://org/model", "/any", Origin("hf://org/model", "org/model", "main", None)),
        (
            "hf://org/model",
            f"/cache/huggingface/models--org--model/snapshots/{COMMIT}",
            Origin("hf://org/model", "org/model", "main", COMMIT),
        ),
        ("hf://org/model@v2", "/any", Origin("hf://org/model@v2", "org/model", "v2", None)),
        ("hf://org/model/sub", "/any", Origin("hf://org/model/sub", "hf://org/model/sub", "main", None)),
        ("modelscope://org/model", "/any", Origin("modelscope://org/model", "org/model", "main", None)),
        ("file:///m/./tiny", "/any", Origin("file:///m/tiny", "/m/tiny")),
        ("s3://bucket/models/x", "/any", Origin("s3://bucket/models/x", "s3://bucket/models/x")),
        ("pvc://claim/x", "/any", Origin("pvc://claim/x", "pvc://claim/x")),
    ],
)
def test_origin(uri: str, folder: str, expected: Origin) -> None:
    assert origin(Model(uri=uri), Path(folder)) == expected


@pytest.mark.parametrize(
    ("found", "pinned"),
    [(HUB, None), (Origin("u", "n", "v2"), "v2"), (Origin("u", "n", "main", COMMIT), COMMIT), (LOCAL, None)],
)
def test_the_most_exact_revision_counts(found: Origin, pinned: str | None) -> None:
    assert found.pinned == pinned


@pytest.mark.parametrize(
    ("base", "uri", "serving", "command"),
    [
        (
            LOCAL,
            "file:///out/uid/attempt-1/adapter",
            SERVING,
            "vllm serve /models/tiny --enable-lora --lora-modules bot=/out/uid/attempt-1/adapter "
            "--max-lora-rank 16",
        ),
        (
            Origin("hf://org/model", "org/model", "main", COMMIT),
            "s3://bucket/bot/uid/attempt-1/adapter",
            Serving("bot", 20),
            "aws s3 sync s3://bucket/bot/uid/attempt-1/adapter bot-adapter && "
            f"vllm serve org/model --revision {COMMIT} --enable-lora --lora-modules bot=bot-adapter "
            "--max-lora-rank 32",
        ),
        (
            Origin("s3://bucket/models/llama", "s3://bucket/models/llama"),
            "s3://bucket/bot/adapter",
            SERVING,
            "aws s3 sync s3://bucket/models/llama llama && "
            "aws s3 sync s3://bucket/bot/adapter bot-adapter && "
            "vllm serve llama --enable-lora --lora-modules bot=bot-adapter --max-lora-rank 16",
        ),
        (
            HUB,
            "gs://bucket/bot/adapter",
            SERVING,
            "mkdir -p bot-adapter && gcloud storage rsync --recursive gs://bucket/bot/adapter bot-adapter && "
            "vllm serve org/model --enable-lora --lora-modules bot=bot-adapter --max-lora-rank 16",
        ),
        (
            HUB,
            "az://box/bot/adapter",
            SERVING,
            "mkdir -p bot-adapter && az storage blob download-batch --source box --pattern 'bot/adapter/*' "
            "--destination bot-adapter && vllm serve org/model --enable-lora "
            "--lora-modules bot=bot-adapter/bot/adapter --max-lora-rank 16",
        ),
        (
            Origin("modelscope://org/model", "org/model", "master"),
            "file:///out/adapter",
            SERVING,
            "VLLM_USE_MODELSCOPE=True vllm serve org/model --revision master --enable-lora "
            "--lora-modules bot=/out/adapter --max-lora-rank 16",
        ),
        (
            Origin("hf://org/model/sub", "hf://org/model/sub", "main", COMMIT),
            "file:///out/adapter",
            SERVING,
            "hf download org/model --include 'sub/*' --revision main --local-dir model && "
            "vllm serve model/sub --enable-lora --lora-modules bot=/out/adapter --max-lora-rank 16",
        ),
        (
            LOCAL,
            "file:///my out/adapter",
            Serving("bot", 8, own_template=True, own_stop=True, trust_remote_code=True),
            "vllm serve /models/tiny --trust-remote-code --enable-lora "
            "--lora-modules 'bot=/my out/adapter' --max-lora-rank 8 "
            "--chat-template '/my out/adapter/chat_template.jinja' --generation-config '/my out/adapter'",
        ),
    ],
    ids=["folder", "bucket", "base in a bucket", "gs", "az", "modelscope", "folder of a hub", "own template"],
)
def test_serve_command(base: Origin, uri: str, serving: Serving, command: str) -> None:
    assert serve_command(base, uri, serving) == command


def test_claims_are_served_from_where_they_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_CLAIMS", "/mnt/claims")
    command = serve_command(
        Origin("pvc://models/x", "pvc://models/x"), "pvc://out/uid/attempt-1/adapter", SERVING
    )
    assert command.startswith("vllm serve /mnt/claims/models/x --enable-lora")
    assert "bot=/mnt/claims/out/uid/attempt-1/adapter" in command


def test_the_merged_model_is_served_alone() -> None:
    assert serve_merged_command("s3://b/uid/attempt-1/merged", "bot") == (
        "aws s3 sync s3://b/uid/attempt-1/merged bot-merged && vllm serve bot-merged --served-model-name bot"
    )


@pytest.mark.parametrize(
    ("rank", "allowed"), [(1, 8), (8, 8), (9, 16), (33, 64), (257, 320), (321, 512), (512, 512)]
)
def test_ranks_are_rounded_up(rank: int, allowed: int) -> None:
    assert max_lora_rank(rank) == allowed
    assert allowed in RANKS


def test_a_rank_beyond_all() -> None:
    with pytest.raises(ValueError, match="highest that vLLM serves"):
        max_lora_rank(513)
