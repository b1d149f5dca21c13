"""Other people's chatter: silenced where it says nothing to whoever runs a job."""

from __future__ import annotations

import logging
import os
import warnings


def silence() -> None:
    """Keep progress bars, advertisements and known harmless warnings of the libraries out of the log."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("BITSANDBYTES_NOWELCOME", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # triton is left out where there is no GPU; nothing here counts its operations.
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(torch|deepspeed|peft|transformers)\b")
