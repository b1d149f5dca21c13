"""The one line that serves what was published, with vLLM."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from finetune_trainer.artifact.origin import Origin
from finetune_trainer.storage.hubs import Repository
from finetune_trainer.storage.uri import Location, join

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for --max-lora-rank; a rank may be lower than the one allowed for."""


@dataclass(frozen=True)
class Serving:
    """What a server has to be told beside the two addresses."""

    name: str
    """What clients call the adapter."""
    rank: int
    own_template: bool = False
    """The chat template of training is not the base model's own."""
    own_stop: bool = False
    """Replies end with a token at which the base model's configuration does not stop."""
    trust_remote_code: bool = False


def serve_command(origin: Origin, uri: str, serving: Serving) -> str:
    """A shell command that fetches what vLLM cannot fetch itself, and serves the adapter.

    Args:
        origin: the base model.
        uri: the published adapter.
        serving: how to serve it.
    """
    fetch_adapter, adapter = _local(Location.parse(uri), f"{serving.name}-adapter")
    fetch_base, environment, base = _base(origin)
    command = ["vllm", "serve", base]
    if origin.pinned and base == origin.name:
        command += ["--revision", origin.pinned]
    if serving.trust_remote_code:
        command.append("--trust-remote-code")
    command += ["--enable-lora", "--lora-modules", f"{serving.name}={adapter}"]
    command += ["--max-lora-rank", str(max_lora_rank(serving.rank))]
    if serving.own_template:
        command += ["--chat-template", f"{adapter}/chat_template.jinja"]
    if serving.own_stop:
        command += ["--generation-config", adapter]
    return " && ".join([*fetch_base, *fetch_adapter, environment + shlex.join(command)])


def serve_merged_command(uri: str, name: str) -> str:
    """A shell command that serves the merged model at `uri` under `name`."""
    fetch, folder = _local(Location.parse(uri), f"{name}-merged")
    return " && ".join([*fetch, shlex.join(["vllm", "serve", folder, "--served-model-name", name])])


def max_lora_rank(rank: int) -> int:
    """The smallest rank that vLLM can be set to and that holds `rank`.

    Raises:
        ValueError: there is none.
    """
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise ValueError(f"rank {rank} is above {RANKS[-1]}, the highest that vLLM serves")


def _base(origin: Origin) -> tuple[list[str], str, str]:
    """Commands that fetch the base model, variables to set, and what to call it."""
    location = Location.parse(origin.uri)
    if location.scheme not in ("hf", "modelscope"):
        fetch, folder = _local(location, location.path.rpartition("/")[2] or location.host)
        return fetch, "", folder
    variables = "VLLM_USE_MODELSCOPE=True " if location.scheme == "modelscope" else ""
    repository = Repository.parse(location, origin.revision or "main")
    if not repository.path:
        return [], variables, origin.name
    folder = repository.name.rpartition("/")[2]
    client = "hf" if location.scheme == "hf" else "modelscope"
    pattern = f"{repository.path}/*"
    download = [client, "download", repository.name, "--include", pattern, "--revision", repository.revision]
    option = "--local-dir" if client == "hf" else "--local_dir"
    return [shlex.join([*download, option, folder])], "", f"{folder}/{repository.path}"


def _local(location: Location, folder: str) -> tuple[list[str], str]:
    """Commands that bring what is at `location` into `folder` of the current one, and where it then lies."""
    if location.scheme in ("file", "pvc"):
        return [], str(location.folder)
    make = shlex.join(["mkdir", "-p", folder])
    if location.scheme == "s3":
        return [shlex.join(["aws", "s3", "sync", location.uri, folder])], folder
    if location.scheme == "gs":
        sync = ["gcloud", "storage", "rsync", "--recursive", location.uri, folder]
        return [make, shlex.join(sync)], folder
    # az keeps the whole path of each blob below the folder.
    download = ["az", "storage", "blob", "download-batch", "--source", location.host]
    download += ["--pattern", join(location.path, "*"), "--destination", folder]
    return [make, shlex.join(download)], join(folder, location.path)
