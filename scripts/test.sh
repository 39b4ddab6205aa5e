#!/usr/bin/env bash
# Runs the tests: the quick ones, or what is named.
#
#   scripts/test.sh                  the quick ones: twenty minutes on two slow cores, less once cells are cached
#   scripts/test.sh --all            slow ones too: hours
#   scripts/test.sh FILE|NAME ...    those of a file or folder, or with NAME in their name
#
# --coverage also prints which lines ran, those of ranks and commands too; other options go to pytest.
# The quick ones run on all cores, the slow ones and those of a file one by one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" test
cd "$MSRL_ROOT"
unset PYTHONDONTWRITEBYTECODE # else each of some hundred processes compiles all sources
pytest=(.venv/bin/python -m pytest --durations=10 --durations-min=1)
all=false
names=""
files=()
for argument in "$@"; do
    case "$argument" in
        --all) all=true ;;
        --coverage) pytest+=(--cov --cov-append --cov-report=term) && rm -f .coverage* ;;
        -*) pytest+=("$argument") ;;
        *) if [ -e "${argument%%::*}" ]; then files+=("$argument"); else names+="${names:+ or }$argument"; fi ;;
    esac
done
if [ "${#files[@]}" -gt 0 ] || [ -n "$names" ]; then
    $all || pytest+=(-m "not slow")
    exec "${pytest[@]}" ${names:+-k "$names"} "${files[@]}"
fi
echo "The quick tests, on all cores; twenty minutes on two slow ones:"
# One process more than cores: the tests that kill processes or wait for deadlines leave cores idle.
"${pytest[@]}" -m "not slow" --numprocesses "$(($(nproc) + 1))" --dist worksteal
if $all; then
    echo "The slow tests, one by one; hours:"
    "${pytest[@]}" -m slow
fi
