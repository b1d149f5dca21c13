"""The agent of a worker: one per pod, or one per local process of `finetune run`.

It never imports torch: it starts the ranks, watches them, speaks with the agents of
the other workers, and says in the end why the run ended.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Run the agent; returns the exit code of its outcome (see `finetune_trainer.worker.command`)."""
    # Imported here so that `finetune_trainer.worker.tether`, which every rank starts through, stays light.
    from finetune_trainer.worker.command import main as run

    return run(argv)
