#!/usr/bin/env bash
# A first day: trains and films CartPole; trains your own environment with two seeds, evaluates it
# meanwhile and compares the seeds; exports the policy, uses it without this project, and resumes:
#   pip install '.[video,export,plot,board]'
#   bash docs/first_walk.sh [DIRECTORY]
# The environment is docs/examples/shop.py, with Dict observations and an action mask; replace it
# by your own file.
set -euo pipefail
runs="$(realpath -m "${1:-runs/first-walk}")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=docs/examples/shop.py:Shop

msrl train ppo --total-steps 65536 --run-dir "$runs/cartpole"
msrl eval "$runs/cartpole" --video "$runs/cartpole.mp4"

msrl envs check "$env"
for seed in 1 2; do
  msrl train ppo --env "$env" --policy MultipleLearners --workers 2 --seed "$seed" \
    --total-steps 40960 --eval-every 10240 --eval-episodes 5 --run-dir "$runs/shop-$seed"
done
msrl eval "$runs/shop-1" --checkpoint best --episodes 20
msrl eval "$runs/shop-1" --episodes 1 --video "$runs/shop-1/episode.mp4"
msrl plot "$runs/shop-1" "$runs/shop-2" --metric eval/mean_return --output "$runs/curves.svg"

msrl export "$runs/shop-1" --output "$runs/policy.onnx"
python docs/examples/use_onnx.py "$runs/policy.onnx"

msrl train --resume "$runs/shop-1" --workers 3 --total-steps 61440 --run-dir "$runs/shop-1-more"
echo "in $runs: curves.svg, policy.onnx, shop-1/episode.mp4; next: msrl board $runs"
