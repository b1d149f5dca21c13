"""How long the command line takes to start, beside the bare interpreter: one JSON line.

    python benchmarks/startup.py [--repeats N]

Commands are timed in turns, so that whatever else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

JOB = Path(__file__).parents[1] / "tests" / "cases" / "jobs" / "qwen-7b-lora.yaml"
FINETUNE = Path(sys.executable).with_name("finetune")
COMMANDS = {
    "interpreter": [sys.executable, "-c", "pass"],
    "help": [str(FINETUNE), "--help"],
    "validate": [str(FINETUNE), "validate", str(JOB)],
}


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of one run."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description="Time the command line's start.")
    parser.add_argument("--repeats", type=int, default=20)
    repeats: int = parser.parse_args().repeats
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats + 1):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    # The first round fills the disk cache.
    median = {name: statistics.median(values[1:]) for name, values in taken.items()}
    least = {name: min(values[1:]) for name, values in taken.items()}
    print(
        json.dumps(
            {
                "benchmark": "startup",
                "help_vs_interpreter": round(median["help"] / median["interpreter"], 2),
                "help_vs_interpreter_least": round(least["help"] / least["interpreter"], 2),
                "validate_seconds": round(median["validate"], 3),
                "validate_seconds_least": round(least["validate"], 3),
                "repeats": repeats,
            }
        )
    )


if __name__ == "__main__":
    main()
