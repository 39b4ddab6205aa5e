#!/usr/bin/env bash
# Runs the tests. Without arguments those that are not marked slow; --all runs everything;
# other arguments go to pytest. The last lines tell the time of each tier and what was left out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" test
cd "$MSRL_ROOT"
selection=(-m "not slow")
arguments=()
for argument in "$@"; do
    if [ "$argument" = --all ]; then
        selection=()
    else
        arguments+=("$argument")
    fi
done
exec .venv/bin/python -m pytest ${selection[@]+"${selection[@]}"} ${arguments[@]+"${arguments[@]}"}
