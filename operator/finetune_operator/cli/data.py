"""`finetune data`: hands over to the trainer, with a job file turned into what its stages read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from finetune_operator.cli.commands import USAGE, execute

MODULE = "finetune_trainer.data.cli"
"""What is executed, and knows the options."""
_JOB_ENDINGS = (".yaml", ".yml")
_FAULTY = 1


def main(argv: list[str]) -> int:
    """Show what will be learned from rows, or from those that a job file names.

    Returns:
        Only where it does not come to that: 1 for faults in the job file, 2 for wrong usage or a file
        that cannot be read.
    """
    jobs = [argument for argument in argv if argument.endswith(_JOB_ENDINGS)]
    if not jobs:
        return execute("data", MODULE, argv)
    rest = [argument for argument in argv if argument not in jobs]
    if len(jobs) > 1:
        print("finetune data: takes one job file at a time", file=sys.stderr)
        return USAGE
    return _show(Path(jobs[0]), rest)


def _show(path: Path, rest: list[str]) -> int:
    from finetune_operator import run_config
    from finetune_operator.api import InvalidJobError, load_job

    try:
        job = load_job(path, local=None)
    except OSError as error:
        print(f"finetune data: {path}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return USAGE
    except InvalidJobError as error:
        print(error, file=sys.stderr)
        return _FAULTY
    job = run_config.with_absolute_files(job, folder=Path.cwd(), home=Path.home())
    config = run_config.build(job, uid=run_config.local_uid(job))
    # A file in memory: this process is replaced, so nobody would be left to remove one on disk.
    descriptor = os.memfd_create("run.json", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(config.model_dump_json().encode())
    os.set_inheritable(descriptor, True)
    return execute("data", MODULE, ["--config", f"/proc/self/fd/{descriptor}", *rest])
