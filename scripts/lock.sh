#!/bin/sh
# Resolves requirements/*.txt for every supported Python from pyproject.toml and requirements/*.in.
# Versions stay as they are unless the inputs or the options given (--upgrade) ask for others.
set -eu
cd "$(dirname "$0")/.."

resolve() {
    UV_CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/uv pip compile --quiet --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url "$@"
}

resolve requirements/uv.in --output-file requirements/uv.txt "$@"
resolve pyproject.toml --extra trainer requirements/dev.in --excludes requirements/excluded.txt \
    --output-file requirements/dev.txt "$@"
for peer in trl llamafactory; do
    resolve "benchmarks/peers/$peer.in" --excludes requirements/excluded.txt \
        --output-file "benchmarks/peers/$peer.txt" "$@"
done
