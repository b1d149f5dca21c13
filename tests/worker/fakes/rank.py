"""A rank that trains nothing but speaks as one: steps, heartbeats, checkpoints, and faults on request."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.05)
    parser.add_argument("--fault", default="", help="KIND@RANK:STEP, several with commas")
    parser.add_argument("--ignore-term", action="store_true")
    arguments = parser.parse_args()
    rank = int(os.environ["RANK"])
    faults = {}
    for fault in filter(None, arguments.fault.split(",")):
        kind, _, place = fault.partition("@")
        where, _, step = place.partition(":")
        faults[int(where), int(step)] = kind
    events = os.fdopen(int(os.environ["FINETUNE_EVENTS_FD"]), "w", buffering=1)
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: None if arguments.ignore_term else stopping.append(True))
    (arguments.work / f"environment-{rank}.json").write_text(json.dumps(dict(os.environ)))
    (arguments.work / f"pid-{rank}").write_text(str(os.getpid()))
    print(f"rank {rank} is chatting", flush=True)

    def say(**event: object) -> None:
        if rank == 0 or event["event"] == "outcome":
            events.write(json.dumps(event) + "\n")

    say(event="stage", name="train")
    for step in range(1, arguments.steps + 1):
        time.sleep(arguments.pace)
        (arguments.work / f"heartbeat-{rank}").write_text(str(step))
        fault = faults.get((rank, step))
        if fault:
            act(fault, events)
        loss = 2.0 / step
        say(
            event="step", step=step, total_steps=arguments.steps, epoch=step / arguments.steps, loss=loss,
            learning_rate=1e-4, gradient_norm=0.5, memory_bytes=10**9, tokens=100 * step,
            tokens_per_second=50.0, eta_seconds=(arguments.steps - step) * arguments.pace,
        )  # fmt: skip
        if stopping:
            say(event="checkpoint", step=step, bytes=10, seconds=0.1)
            say(event="outcome", reason="Preempted", message=f"checkpoint at step {step}", step=step)
            return 21
    say(event="checkpoint", step=arguments.steps, bytes=10, seconds=0.1)
    (arguments.work / "adapter").mkdir(exist_ok=True)
    return 0


def act(fault: str, events: TextIO) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        while True:
            signal.pause()
    elif fault == "oom":
        print("Traceback (most recent call last):\n  File a.py\nOutOfMemoryError: HIP out of memory.")
        sys.exit(1)
    elif fault == "echo":
        print("RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:1")
        sys.exit(1)
    elif fault == "denied":
        events.write(
            json.dumps({"event": "outcome", "reason": "StorageDenied", "message": "no right", "step": 3})
            + "\n"
        )
        sys.exit(12)
    elif fault == "garbage":
        events.write(
            "this is no event\n" + "x" * 5_000_000 + "\n" + '{"event":"warning","message":"still here"}\n'
        )
    elif fault == "late-crash":
        events.write(json.dumps({"event": "outcome", "reason": "Succeeded"}) + "\n")
        events.flush()
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    sys.exit(main())
