#!/usr/bin/env bash
# Runs the tests: the quick ones, or what is named.
#
#   scripts/test.sh                  the quick ones: twenty minutes on two cores, less once cells are cached
#   scripts/test.sh --all            slow ones too: hours
#   scripts/test.sh FILE|NAME ...    those of a file or folder, or with NAME in their name
#
# --coverage also prints which lines ran, those of ranks and commands too; other options go to pytest.
# Tests that start no ranks run on all cores at once, before the others.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" test
cd "$MSRL_ROOT"
pytest=(.venv/bin/python -m pytest --durations=10 --durations-min=1)
selection="not slow"
names=""
files=()
options=()
for argument in "$@"; do
    case "$argument" in
        --all) selection="" ;;
        --coverage) pytest+=(--cov --cov-append --cov-report=term) && rm -f .coverage* ;;
        -*) options+=("$argument") ;;
        *) if [ -e "${argument%%::*}" ]; then files+=("$argument"); else names+="${names:+ or }$argument"; fi ;;
    esac
done
if [ "${#files[@]}" -gt 0 ] || [ -n "$names" ]; then
    exec "${pytest[@]}" ${selection:+-m "$selection"} "${options[@]}" ${names:+-k "$names"} "${files[@]}"
fi
also="${selection:+ and $selection}"
echo "Tests that start no ranks, on all cores:"
"${pytest[@]}" "${options[@]}" -m "side_by_side$also" --numprocesses logical --dist loadfile
echo "Tests that start ranks, one by one:"
exec "${pytest[@]}" "${options[@]}" -m "not side_by_side$also"
