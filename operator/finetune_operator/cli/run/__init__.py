"""`finetune run`: one job on this machine, by the same stages and agents that a cluster runs."""

from finetune_operator.cli.run.command import main

__all__ = ["main"]
