"""Prepare a big JSON Lines file: time against the bare fast tokenizer on the same cores, memory, tokens.

    python benchmarks/prepare.py --model DIR [--rows 1000000] [--repeats 3]

Rows of about 1 kB are made of the tokenizer's own words, the more frequent the lower their number (Zipf),
with a fixed seed. The bare tokenizer encodes the same rendered texts in batches on all cores, from memory,
and keeps nothing. One JSON line comes out; only the ratio means anything on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
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

BATCH = 512


class Words:
    """Sentences of the tokenizer's words, as often as words of their rank are in English."""

    def __init__(self, model: Path) -> None:
        vocabulary = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab()
        starts = (word for word in sorted(vocabulary, key=vocabulary.__getitem__) if word.startswith("Ġ"))
        self._words = [word[1:] for word in starts if word[1:].isalpha() and word.isprintable()]
        self._weights = list(itertools.accumulate(1 / rank for rank in range(1, len(self._words) + 1)))
        self._source = random.Random(7)  # noqa: S311 - reproducible data, no secret

    def text(self, words: int) -> str:
        """So many words."""
        chosen = self._source.choices(self._words, cum_weights=self._weights, k=words)
        for place in range(7, words, 8):
            chosen[place] += "." if place % 16 == 7 else ", and"
        return " ".join(chosen).capitalize()

    def number(self) -> int:
        """Words of a row: lengths vary by a factor of ten."""
        return self._source.randint(15, 240)


def generate(path: Path, rows: int, model: Path) -> None:
    """Write `rows` Alpaca rows of about 1 kB."""
    source = Words(model)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            words = source.number()
            record = {
                "instruction": f"Question {number}: {source.text(words // 4)}",
                "input": "",
                "output": source.text(words),
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
        generate(path, arguments.rows, arguments.model)
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
