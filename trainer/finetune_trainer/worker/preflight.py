"""The checks of a worker before any rank is started.

    python -m finetune_trainer.worker.preflight --config run.json --work DIR

A program of its own, so that the storage client's memory is given back before training.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from finetune_trainer.config import ExitReason, Outcome, RunError
from finetune_trainer.storage import open_output
from finetune_trainer.worker.devices import check_gpus, check_shared_memory, visible_gpus
from finetune_trainer.worker.entry import failure, load_config


def main() -> int:
    """Check this worker; prints the outcome as an event and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m finetune_trainer.worker.preflight")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    outcome = Outcome(reason=ExitReason.SUCCEEDED)
    try:
        config = load_config(arguments.config)
        check_gpus(config, visible_gpus())
        check_shared_memory(config)
        open_output(config.output.uri, credentials=config.output.credentials).check_writable()
    except RunError as error:
        outcome = failure(error)
    print(outcome.model_dump_json(), flush=True)
    return outcome.reason.exit_code


if __name__ == "__main__":
    sys.exit(main())
