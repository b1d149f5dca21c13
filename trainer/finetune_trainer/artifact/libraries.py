"""What has to be settled before torch is imported."""

from __future__ import annotations

import os

from finetune_trainer.train.quiet import silence


def settle() -> None:
    """Silence the libraries, and let idle threads sleep.

    An answer is thousands of tiny parallel steps. Threads that spin between them take the cores from
    each other wherever something else runs too: measured on two busy cores, three times as slow.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    silence()
