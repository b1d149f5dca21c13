#!/bin/sh
# Finds a Python that can build .venv, then hands over to environment.py. Where Debian packages are missing
# it installs them if it may without asking for a password, else it names them.
set -eu

suits() {
    command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

install() {
    as_root=
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "setup: the system package $1 is missing: run 'sudo apt-get install $1', then this again" >&2
            return 1
        fi
        as_root=sudo
    fi
    if ! command -v apt-get >/dev/null; then
        echo "setup: $1 (its Debian name) is missing: install it, then run this again" >&2
        return 1
    fi
    echo "setup: installing the system package $1"
    log=$(mktemp)
    if ! { $as_root apt-get update && $as_root apt-get install --yes --no-install-recommends "$1"; } \
        >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "setup: apt-get could not install $1 (all it said: $log)" >&2
        return 1
    fi
    rm -f "$log"
}

python=
for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if suits "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no Python")
    echo "setup: Python 3.11 or newer is needed, $found found: install one (Debian 12 and Ubuntu 24.04 have it)" \
        "and run 'make PYTHON=/path/to/python3 ...'" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    install "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
fi
exec "$python" "$(dirname "$0")/environment.py"
