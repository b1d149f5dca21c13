"""`python -m finetune_trainer.train --config run.json --work DIR`: one rank, started by its agent."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from finetune_trainer.config import ExitReason, Outcome, RunConfig
from finetune_trainer.train.emit import Emitter
from finetune_trainer.train.signals import StopRequest


def main() -> NoReturn:
    """Run one rank to its outcome, and leave with the outcome's exit code."""
    parser = argparse.ArgumentParser(prog="finetune_trainer.train")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    run = RunConfig.load(arguments.config)
    rank = int(os.environ["RANK"])
    emit = Emitter.open(arguments.work, rank)
    stop = StopRequest()
    stop.listen()
    # torch and its friends take seconds to import: only after signals and events are in place.
    from finetune_trainer import libraries

    libraries.settle()
    from finetune_trainer.train import failures
    from finetune_trainer.train.rank import train
    from finetune_trainer.train.world import join

    try:
        world = join(gpus=run.workers.gpus_per_worker > 0)
        progress = train(run, arguments.work, world, emit, stop)
        world.barrier()
        outcome = Outcome(reason=ExitReason.SUCCEEDED, step=progress.step, rank=rank)
    except Exception as error:
        # The edge of the process: whatever it was becomes this rank's one outcome.
        outcome = failures.outcome(error, rank=rank, step=0)
        if outcome.traceback:
            # The outcome has room for its end only; the log is where all of it is looked for.
            traceback.print_exception(error)
    emit(outcome)
    sys.stderr.flush()
    # Not sys.exit: a process group whose peers are gone can hang in its destructor.
    os._exit(outcome.reason.exit_code)


if __name__ == "__main__":
    main()
