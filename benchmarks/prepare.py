"""Prepare a big JSON Lines file: time against the bare fast tokenizer on the same cores, memory, tokens.

    python benchmarks/prepare.py --model DIR [--rows 1000000] [--repeats 3]

Rows of about 1 kB are generated from the words of a small list with a fixed seed. The bare tokenizer
encodes the same rendered texts in batches on all cores, from memory, and keeps nothing. One JSON line
comes out; only the ratio means anything on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from tokenizers import Tokenizer

WORDS = (  # noqa: SIM905 - a list of words reads better as words
    "harbour ferry lantern quarter morning copper signal weather because though between passage market "
    "thirty window carried gently answer question number schedule bakery tide engine letter river stone"
).split()
BATCH = 512


def text(source: random.Random, words: int) -> str:
    """Sentences of random words."""
    chosen = source.choices(WORDS, k=words)
    for place in range(7, words, 8):
        chosen[place] += "." if place % 16 == 7 else ", and"
    return " ".join(chosen).capitalize()


def generate(path: Path, rows: int) -> None:
    """Write `rows` Alpaca rows; lengths vary by a factor of ten around 1 kB."""
    source = random.Random(7)  # noqa: S311 - reproducible data, no secret
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            words = source.randint(15, 240)
            record = {
                "instruction": f"Question {number}: {text(source, words // 4)}",
                "input": "",
                "output": text(source, words),
            }
            file.write(json.dumps(record) + "\n")


def bare(path: Path, model: Path) -> tuple[float, int]:
    """Seconds and tokens of the bare tokenizer over the file's texts."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    seconds, tokens = 0.0, 0
    batch: list[str] = []

    def flush() -> None:
        nonlocal seconds, tokens
        start = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        seconds += time.perf_counter() - start
        tokens += sum(map(len, encodings))
        batch.clear()

    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            batch.append(
                f"<|im_start|>user\n{record['instruction']}<|im_end|>\n"
                f"<|im_start|>assistant\n{record['output']}<|im_end|>\n"
            )
            if len(batch) == BATCH:
                flush()
    flush()
    return seconds, tokens


def prepare(path: Path, model: Path, folder: Path) -> tuple[float, int]:
    """Seconds and peak bytes (unique to all processes of the stage together) of the prepare stage."""
    config = {
        "name": "benchmark",
        "uid": "benchmark",
        "model": {"uri": model.absolute().as_uri()},
        "dataset": {"sources": [{"uri": path.as_uri()}], "template": "ChatML"},
        "output": {"uri": (folder / "output").as_uri()},
    }
    (folder / "run.json").write_text(json.dumps(config), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "finetune_trainer.prepare"),
        *("--config", str(folder / "run.json"), "--work", str(folder / "work")),
    ]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        parent = psutil.Process(process.pid)
        while not done.wait(0.2):
            peak = max(peak, sum(map(_own, [parent, *parent.children(recursive=True)])))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        code = process.wait()
    finally:
        done.set()
        watcher.join()
    if code:
        raise SystemExit(f"the prepare stage ended with {code}")
    return time.perf_counter() - start, peak


def _own(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0


def main() -> None:
    """Run the comparison and print its line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder with a tokenizer.json")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "rows.jsonl"
        generate(path, arguments.rows)
        ratios, peaks = [], []
        for repeat in range(arguments.repeats):
            baseline, tokens = bare(path, arguments.model)
            work = folder / str(repeat)
            work.mkdir()
            seconds, peak = prepare(path, arguments.model, work)
            ratios.append(seconds / baseline)
            peaks.append(peak)
        print(
            json.dumps(
                {
                    "rows": arguments.rows,
                    "megabytes": round(path.stat().st_size / 1e6),
                    "cores": len(os.sched_getaffinity(0)),
                    "tokens": tokens,
                    "vs_bare_tokenizer": round(statistics.median(ratios), 3),
                    "spread": [round(min(ratios), 3), round(max(ratios), 3)],
                    "peak_megabytes": round(max(peaks) / 1e6),
                    "tokens_per_second": round(tokens / seconds),
                }
            )
        )


if __name__ == "__main__":
    main()
