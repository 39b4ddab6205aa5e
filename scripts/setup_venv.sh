#!/usr/bin/env bash
# Makes or updates .venv at the repository's root, by requirements.txt and setup.py.
# Sourced by the other scripts:  source .../setup_venv.sh runtime|test|gpu
# (the argument is required: a sourced script without one sees its caller's). Sets MSRL_ROOT.

MSRL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

_msrl_find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.12 python3.11 python3.10 python3; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    echo "No Python 3.10, 3.11 or 3.12 found, and MindSpore needs one: install Python 3.11," \
        "or name one, as in PYTHON=/path/to/python3.11 $0" >&2
    return 1
}

_msrl_setup() {
    local extra="$1" what="$MSRL_ROOT" venv="$MSRL_ROOT/.venv" python sum stamp
    if [ ! -x "$venv/bin/pip" ]; then
        python="$(_msrl_find_python)" || return 1
        if ! "$python" -m venv "$venv" >&2; then
            echo "Could not create $venv (on Debian and Ubuntu: apt install python3-venv)" >&2
            return 1
        fi
    fi
    # The folder is part of the sum: a moved checkout must be installed again.
    sum="$(cd "$MSRL_ROOT" && { pwd; cat requirements.txt setup.py; } | cksum)"
    [ "$(cat "$venv/.installed-$extra" 2>/dev/null)" = "$sum" ] && return 0
    [ "$extra" = runtime ] || what="$MSRL_ROOT[$extra]"
    echo "Installing mindspore_rl and its requirements into .venv" \
        "(the first time takes a few minutes) ..." >&2
    rm -f "$venv/.installed-runtime" # in case pip is cut off
    for stamp in "$venv"/.installed-*; do
        [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] || rm -f "$stamp"
    done
    # An index has another project of this name, and ours had it once.
    "$venv/bin/python" -m pip uninstall -qq -y mindspore_rl
    if ! "$venv/bin/python" -m pip install -qq --disable-pip-version-check -e "$what" >&2; then
        echo "The installation failed: pip's message is above; run this again once it is solved." >&2
        return 1
    fi
    echo "$sum" | tee "$venv/.installed-runtime" >"$venv/.installed-$extra"
}

_msrl_setup "${1:-runtime}" || exit 1
