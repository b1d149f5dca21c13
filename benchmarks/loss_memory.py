"""Memory of the loss of a long row over a large vocabulary, beside the path over full logits: one JSON line.

    python benchmarks/loss_memory.py [--tokens 4096] [--vocabulary 128256] [--hidden 576]

Each path runs forward and backward in a process of its own, on fp32 states and a frozen head; what counts is
how far its peak rises above what the process held with the states, the head and the torch library loaded.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

PATHS = ("ours", "full_logits")


def peak() -> int:
    """Bytes this process has held at most. Linux counts in KiB (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(path: str, tokens: int, vocabulary: int, hidden: int) -> None:
    """Print bytes and the loss of one path."""
    import torch
    from torch.nn.functional import cross_entropy, linear

    from finetune_trainer.train.loss import sum_loss

    torch.manual_seed(0)
    states = torch.randn(tokens, hidden, requires_grad=True)
    # In place: a second copy, made and dropped, would hide in the peak what comes after.
    weight = torch.randn(vocabulary, hidden).div_(hidden**0.5)
    targets = torch.randint(vocabulary, (tokens,))
    before = peak()
    if path == "ours":
        loss = sum_loss(
            states, targets, lambda part: linear(part, weight), vocabulary=vocabulary, frozen_head=True
        )
    else:
        loss = cross_entropy(linear(states, weight).float(), targets, reduction="sum")
    loss.backward()
    assert states.grad is not None
    print(json.dumps({"bytes": peak() - before, "loss": float(loss) / tokens}))


def main() -> None:
    """Run both paths and print their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--path", choices=PATHS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = (arguments.tokens, arguments.vocabulary, arguments.hidden)
    if arguments.path:
        measure(arguments.path, *size)
        return
    found = {}
    for path in PATHS:
        command = [sys.executable, __file__, "--path", path]
        for name, value in zip(("--tokens", "--vocabulary", "--hidden"), size, strict=True):
            command += [name, str(value)]
        found[path] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        json.dumps(
            {
                "benchmark": "loss_memory",
                "tokens": arguments.tokens,
                "vocabulary": arguments.vocabulary,
                "vs_full_logits": round(found["ours"]["bytes"] / found["full_logits"]["bytes"], 4),
                "megabytes": {path: round(found[path]["bytes"] / 1e6) for path in PATHS},
                "losses": {path: round(found[path]["loss"], 6) for path in PATHS},
            }
        )
    )


if __name__ == "__main__":
    main()
