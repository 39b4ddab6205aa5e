#!/usr/bin/env bash
# Trains inside a Slurm allocation: makes a deployment file of the job's nodes, and passes its
# arguments to `msrl train`.
#
#   sbatch --nodes 2 --ntasks-per-node 4 scripts/train_slurm.sh ppo --policy SingleLearnerCoarse --workers 7
#   sbatch --nodes 16 --ntasks-per-node 4 --gpus-per-node 4 scripts/train_slurm.sh ppo --policy GPUOnly --workers 64 --device gpu
#
# A node has as many ranks as --ntasks-per-node. Set MSRL_INTERFACE to choose a network interface.
# Two minutes before a time limit, and with `scancel --batch --signal TERM JOB`, the run ends with a
# checkpoint; plain `scancel` ends every rank at once, and the previous checkpoint is the last.
#SBATCH --job-name=msrl
#SBATCH --signal=B:TERM@120
#SBATCH --output=msrl-%j.log
set -euo pipefail
: "${SLURM_JOB_NODELIST:?this script runs inside a Slurm job: sbatch --nodes N scripts/train_slurm.sh ...}"
root=${MSRL_ROOT:-$SLURM_SUBMIT_DIR} # sbatch runs a copy of this file: start it in the checkout
mkdir -p "$root/runs"
hosts="$root/runs/hosts-$SLURM_JOB_ID.yaml" # stays: --resume reads it again
{
    echo "hosts:"
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        echo "  - {name: $node, address: $node, slots: ${SLURM_NTASKS_PER_NODE:-1}}"
    done
    echo "launcher: slurm"
    [ -z "${MSRL_INTERFACE:-}" ] || echo "interface: $MSRL_INTERFACE"
} > "$hosts"
exec "$root/.venv/bin/msrl" train "$@" --deployment "$hosts"
