#!/usr/bin/env bash
# Trains PPO; arguments go to `msrl train ppo` (--help lists them).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_venv.sh" runtime
case " $* " in
*" --device gpu "* | *" --device=gpu "*)
    # Without a driver, nothing is installed: msrl reports it.
    if "$MSRL_ROOT/.venv/bin/python" -c "from mindspore_rl.platform import gpu; gpu.driver()" 2>/dev/null; then
        _msrl_setup gpu
    fi
    ;;
esac
exec "$MSRL_ROOT/.venv/bin/msrl" train ppo "$@"
