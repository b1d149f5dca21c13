"""`python -m finetune_trainer.prepare --config run.json --work DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from finetune_trainer.prepare.stage import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m finetune_trainer.prepare", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="run.json")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for what the stage writes while it runs"
    )
    arguments = parser.parse_args()
    sys.exit(main(arguments.config, arguments.work))
