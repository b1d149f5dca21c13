"""A preflight or publication that only speaks: prints the events it is given and ends as they say."""

import argparse
import json
import sys
import time

REASONS = {"Succeeded": 0, "StorageDenied": 12, "PreflightFailed": 15, "Internal": 23}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--work")
    parser.add_argument("--event", action="append", default=[])
    parser.add_argument("--reason", default="Succeeded")
    parser.add_argument("--message", default="")
    parser.add_argument("--seconds", type=float, default=0)
    arguments = parser.parse_args()
    for event in arguments.event:
        print(event, flush=True)
    time.sleep(arguments.seconds)
    print(
        json.dumps({"event": "outcome", "reason": arguments.reason, "message": arguments.message}), flush=True
    )
    return REASONS[arguments.reason]


if __name__ == "__main__":
    sys.exit(main())
