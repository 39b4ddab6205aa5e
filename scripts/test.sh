#!/usr/bin/env bash
# Runs the tests. Without arguments those that are not marked slow, what starts no processes on all
# cores at once. --all runs everything; --coverage also prints which lines ran, those of ranks and
# commands too; other arguments go to pytest. The last lines tell the time of each tier and what was
# left out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" test
cd "$MSRL_ROOT"
pytest=(.venv/bin/python -m pytest)
selection="not slow"
arguments=()
for argument in "$@"; do
    case "$argument" in
        --all) selection="" ;;
        --coverage) pytest+=(--cov --cov-append --cov-report=term) && rm -f .coverage* ;;
        *) arguments+=("$argument") ;;
    esac
done
if [ "${#arguments[@]}" -gt 0 ]; then
    exec "${pytest[@]}" ${selection:+-m "$selection"} "${arguments[@]}"
fi
also="${selection:+ and $selection}"
"${pytest[@]}" -m "side_by_side$also" --numprocesses logical --dist loadfile
exec "${pytest[@]}" -m "not side_by_side$also"
