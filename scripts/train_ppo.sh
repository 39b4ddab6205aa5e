#!/usr/bin/env bash
# Trains PPO; arguments go to `msrl train ppo` (--help lists them).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" runtime
exec "$MSRL_ROOT/.venv/bin/msrl" train ppo "$@"
