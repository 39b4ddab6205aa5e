#!/usr/bin/env bash
# Checks style, types and imports between folders, then runs the tests (arguments go to scripts/test.sh); --fast: no tests.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" test
cd "$MSRL_ROOT"
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/python -m mypy mindspore_rl algorithms distribution
.venv/bin/lint-imports
if [ "${1:-}" != --fast ]; then
    bash scripts/test.sh "$@"
fi
