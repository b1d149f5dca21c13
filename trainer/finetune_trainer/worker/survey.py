"""What `finetune run` wants to know before it starts anything.

    python -m finetune_trainer.worker.survey --config run.json

Prints a Survey as one line of JSON, or an outcome event when the run cannot begin.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from finetune_trainer.config import Layout, RunConfig, RunError
from finetune_trainer.config.survey import Survey
from finetune_trainer.storage import open_output
from finetune_trainer.worker.devices import visible_gpus
from finetune_trainer.worker.entry import failure, load_config


def main() -> int:
    """Survey this machine and the run's output; `attempt` in run.json is the attempt to come."""
    parser = argparse.ArgumentParser(prog="python -m finetune_trainer.worker.survey")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        found = survey(load_config(arguments.config))
    except RunError as error:
        print(failure(error).model_dump_json(), flush=True)
        return error.reason.exit_code
    print(found.model_dump_json(), flush=True)
    return 0


def survey(config: RunConfig) -> Survey:
    """Look for GPUs, for a whole publication of an earlier attempt, and whether the output can be written.

    Raises:
        RunError: StorageDenied or StorageUnavailable.
    """
    output = open_output(config.output.uri, credentials=config.output.credentials)
    layout = Layout(config.uid)
    gpus = visible_gpus()
    # This attempt's own place counts too: the record of earlier attempts may have been lost.
    for attempt in range(config.attempt, 0, -1):
        manifest = output.manifest(layout.adapter(attempt))
        # An attempt can end between the two that it was asked for.
        whole = not config.output.merge or output.manifest(layout.merged(attempt)) is not None
        if manifest is not None and whole:
            return Survey(
                gpus=gpus,
                published_attempt=attempt,
                published_uri=output.uri(layout.adapter(attempt)),
                published_bytes=manifest.size,
            )
    output.check_writable()
    return Survey(gpus=gpus)


if __name__ == "__main__":
    sys.exit(main())
