#!/usr/bin/env python3
"""Measures PPO on CartPole-v1 on one device in steps/s, from 64 to 65,536 environments.

    .venv/bin/python scripts/benchmark_gpu.py --others ~/jax/bin/python

Compares the loop of algorithms/ppo.py under GPUOnly with the same loop in JAX (peers/jax_loop.py)
and PyTorch (peers/torch_loop.py), in turn, if they are installed. JAX needs another NumPy than
MindSpore, so it has its own virtual environment. They use the GPU if they were installed for one;
`--device cpu` measures on the CPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

import study
from benchmark import Case, measure
from peers import turns
from peers.table import Program

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import gpu

NUM_ENVS = (64, 256, 1024, 4096, 16384, 65536)
OTHERS = ("jax", "torch")


def main() -> int:
    """Prints a row for each number of environments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--seconds", type=float, default=5.0, help="time of each run (default: 5)")
    parser.add_argument("--num-envs", type=int, nargs="+", default=NUM_ENVS, metavar="N")
    parser.add_argument(
        "--others", default=sys.executable, metavar="PYTHON", help="Python with JAX or PyTorch"
    )
    args = parser.parse_args()
    try:
        _, name = gpu.choose(args.device)
    except MsrlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    args.others = os.path.abspath(shutil.which(args.others) or args.others)
    others = [other for other in OTHERS if _has(args.others, other)]
    print(f"{name or 'CPU'}\n\n{study.table(('environments', 'mindspore_rl', *others), ())}")
    for num_envs in args.num_envs:
        case = Case("GPUOnly", "graph:CartPole-v1", num_envs, 1, device=args.device)
        speeds = [measure(case, args.seconds)[0]]
        speeds += [_other(other, num_envs, args) for other in others]
        print(study.line(f"{value:,.0f}" for value in (num_envs, *speeds)), flush=True)
    return 0


def _other(library: str, num_envs: int, args: argparse.Namespace) -> float:
    config = {"num_envs": num_envs}
    command = (args.others, f"{study.ROOT}/scripts/peers/{library}_loop.py", json.dumps(config))
    program = Program(library, (command,), venv="", gpu=args.device == "gpu")
    return turns.speed(program, 0, args.seconds, warm_up=1.0)


def _has(python: str, library: str) -> bool:
    command = [python, "-c", f"import {library}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
