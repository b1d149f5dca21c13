"""Time and memory of publishing and fetching one large file on a local SeaweedFS over TLS.

    python benchmarks/storage.py [--mib 512] [--repeat 3]

Prints one JSON line. Each measurement runs in a process of its own, so that its peak memory is its
own; where boto3 is installed the same upload by it runs in between, for a ratio under the same load.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fixtures.seaweedfs import S3Server, seaweedfs

_MEASURE = """
import json, resource, sys, time
from pathlib import Path
folder, target, prefix = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
{setup}
begin = time.monotonic()
{work}
seconds = time.monotonic() - begin
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{"seconds": seconds, "mib": mib}}))
"""
_OURS = "from finetune_trainer.storage import open_output\nout = open_output('s3://data/bench')"
_BOTO3 = """import boto3, os
client = boto3.client('s3', verify=os.environ['AWS_CA_BUNDLE'])"""
_WAYS = {
    "publish": (_OURS, "out.publish(folder, prefix)"),
    "fetch": (_OURS, "out.fetch(prefix, target)"),
    "boto3": (_BOTO3, "client.upload_file(str(folder / 'weights'), 'data', 'boto3/' + prefix)"),
}


def _measure(way: str, s3: S3Server, folder: Path, target: Path, prefix: str) -> dict[str, float]:
    setup, work = _WAYS[way]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE.format(setup=setup, work=work), str(folder), str(target), prefix],
        env={**os.environ, **s3.environment()},
        check=True,
        capture_output=True,
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="size of the file")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each way")
    options = parser.parse_args()
    ways = [way for way in _WAYS if way != "boto3" or importlib.util.find_spec("boto3")]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as scratch, seaweedfs(Path(scratch)) as s3:
        folder = Path(scratch) / "folder"
        folder.mkdir()
        with (folder / "weights").open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(2**20))
        for number in range(options.repeat):
            for way in ways:
                target = Path(scratch) / f"fetched-{number}"
                found[way].append(_measure(way, s3, folder, target, f"run-{number}"))
    result: dict[str, float] = {"file_mib": options.mib}
    for way, measured in found.items():
        result[f"{way}_seconds"] = round(statistics.median(m["seconds"] for m in measured), 2)
        result[f"{way}_peak_mib"] = round(max(m["mib"] for m in measured))
    if "boto3" in found:
        result["publish_vs_boto3"] = round(result["boto3_seconds"] / result["publish_seconds"], 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
