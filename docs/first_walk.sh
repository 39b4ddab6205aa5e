#!/usr/bin/env bash
# Trains a policy in your own environment, evaluates it, films an episode and exports the policy:
#   pip install '.[video,export,plot]'
#   bash docs/first_walk.sh [DIRECTORY]
# The environment is docs/examples/thermostat.py; replace it by your own file.
set -euo pipefail
run="$(realpath -m "${1:-runs/first-walk}")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=docs/examples/thermostat.py:make_thermostat

msrl envs check "$env"
msrl train ppo --env "$env" --policy MultipleLearners --workers 2 --total-steps 40960 --run-dir "$run"
msrl eval "$run" --checkpoint best --episodes 20
msrl eval "$run" --episodes 1 --video "$run/episode.mp4"
msrl export "$run" --output "$run/policy.onnx"
msrl plot "$run" --output "$run/curve.svg"
echo "in $run: episode.mp4, policy.onnx, curve.svg"
