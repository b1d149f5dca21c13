"""How other people's libraries behave in our processes; to be settled before torch is imported."""

from __future__ import annotations

import logging
import os
import warnings


def settle() -> None:
    """Silence what says nothing to whoever runs a job, and let idle threads sleep.

    Small parallel steps follow each other closely here. Threads that spin between them take the cores
    from each other wherever something else runs too: measured on two busy cores, three times as slow.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("BITSANDBYTES_NOWELCOME", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # triton is left out where there is no GPU; nothing here counts its operations.
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(torch|deepspeed|peft|transformers)\b")
