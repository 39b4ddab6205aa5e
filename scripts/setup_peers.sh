#!/usr/bin/env bash
# Makes virtual environments under .peers/ for the other libraries of scripts/benchmark.py --peers:
# one for each file scripts/peers/*.txt, or for those named.  scripts/setup_peers.sh [NAME ...]
# torch: the CPU build is enough. On Linux the package index gives the CUDA build, several GB; to
# avoid it, let pip find the CPU wheel (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3.11}"

if [ "$#" = 0 ]; then
    set -- $(basename -s .txt scripts/peers/*.txt)
fi
for name in "$@"; do
    file="scripts/peers/$name.txt" venv=".peers/$name"
    sum="$(cksum <"$file")"
    [ "$(cat "$venv/.installed" 2>/dev/null)" = "$sum" ] && continue
    echo "Installing $file into $venv ..." >&2
    rm -rf "$venv"
    "$PYTHON" -m venv "$venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check -r "$file"
    if [ "$name" = cleanrl ]; then
        # It asks for Python 3.10, and for packages that these files do not import.
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps \
            --ignore-requires-python cleanrl==1.2.0
    fi
    echo "$sum" >"$venv/.installed"
done
