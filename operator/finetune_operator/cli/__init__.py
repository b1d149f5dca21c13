"""The `finetune` command. Nothing heavy is imported before a command is known."""

from __future__ import annotations


def main() -> int:
    """Run the command line of this process; the entry point of the `finetune` script."""
    from finetune_operator.cli.commands import dispatch

    return dispatch()
