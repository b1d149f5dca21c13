#!/bin/sh
# Runs every check, shows the output of those that fail, and fails if one did.
set -u
cd "$(dirname "$0")/.."
failed=

check() {
    name=$1
    shift
    if output=$("$@" 2>&1); then
        echo "check: $name: ok"
    else
        printf '%s\n' "$output"
        echo "check: $name: FAILED"
        failed="$failed $name"
    fi
}

syntax() {
    bash -n .ci/run
    for script in scripts/*.sh; do
        sh -n "$script" || return 1
    done
}

check scripts syntax
check format .venv/bin/ruff format --check .
check lint .venv/bin/ruff check .
check layers .venv/bin/lint-imports
check reference .venv/bin/python -m scripts.reference --check
check tree .venv/bin/python scripts/check_tree.py
check types .venv/bin/mypy
if [ -n "$failed" ]; then
    echo "check: failed:$failed"
    exit 1
fi
