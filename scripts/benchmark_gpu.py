#!/usr/bin/env python3
"""Measures PPO on CartPole-v1 on one device in steps/s, from 64 to 65,536 environments.

    .venv/bin/python scripts/benchmark_gpu.py --others ~/jax/bin/python
    .venv/bin/python scripts/benchmark_gpu.py --replay

Compares the loop of algorithms/ppo.py under GPUOnly with the same loop in JAX (peers/jax_loop.py)
and PyTorch (peers/torch_loop.py), in turn, if they are installed. JAX needs another NumPy than
MindSpore, so it has its own virtual environment. They use the GPU if they were installed for one;
`--device cpu` measures on the CPU.

`--replay` measures how fast batches of a replay table in host memory reach the GPU: read in place
by its threads (`TableGather`), or gathered by all cores into pinned memory and copied.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import study
from benchmark import Case, measure
from peers import replay_loop, turns
from peers.table import Program

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import gpu
from mindspore_rl.replay.bindings import use_threads
from mindspore_rl.replay.pinned_memory import PageLock
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing

NUM_ENVS = (64, 256, 1024, 4096, 16384, 65536)
OTHERS = ("jax", "torch")
REPLAY = (
    ("small transitions", {"obs": (10,)}, "float32", 1, 1_000_000, 256),
    ("Atari transitions", {"obs": (84, 84, 4), "next_obs": (84, 84, 4)}, "uint8", 1, 50_000, 256),
    ("trajectories", {"obs": (17,), "action": (6,), "reward": ()}, "float32", 1000, 20_000, 64),
)
"""Records: name, columns, their type, steps, number of records, and records of a batch."""


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
    parser.add_argument("--replay", action="store_true", help="measure batches of a replay table")
    args = parser.parse_args()
    try:
        _, name = gpu.choose(args.device)
    except MsrlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.replay:
        return _replay(args.seconds)
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


def _replay(seconds: float) -> int:
    """Prints a row for each kind of record; in a process that finds the CUDA libraries."""
    needed = gpu.environment()
    if needed.items() - os.environ.items():
        variables = {**os.environ, **needed}
        return subprocess.run([sys.executable, *sys.argv], env=variables, check=False).returncode
    from mindspore_rl.platform import mindspore_device  # noqa: PLC0415  (needs the environment)

    mindspore_device.use("GPU", compiled=True)
    heads = ("records", "bytes each", "batch", "in place, GB/s", "copied, GB/s", "in place, us")
    print(study.table(heads, ()), flush=True)
    for name, shapes, dtype, length, records, batch in REPLAY:
        spec = TableSpec(
            tuple(Column(key, shape, dtype) for key, shape in shapes.items()),
            records,
            length=length,
        )
        with Table.create(spec) as table:
            ids = _fill(table, records)
            of_batch = batch * length * sum(column.step_bytes for column in spec.columns)
            steps = (_in_place(table, ids, batch), _copied(table, ids, batch))
            rates = [replay_loop.rate(step, seconds) for step in steps]
            speeds = [f"{of_batch * rate / 1e9:.2f}" for rate in rates]
            row = (name, f"{of_batch // batch:,}", str(batch), *speeds, f"{1e6 / rates[0]:.0f}")
            print(study.line(row), flush=True)
    return 0


def _fill(table: Table, records: int) -> np.ndarray:
    """Inserts all records, with random bytes. Returns: their ids."""
    rng, part = np.random.default_rng(0), 100
    columns = {
        name: rng.integers(0, 100, array.shape).astype(array.dtype)
        for name, array in table.buffers(part).items()
    }
    with writing(table, range(1)) as writer:
        lanes = np.zeros(part, np.int64)
        return np.concatenate([writer.insert(lanes, columns) for _ in range(records // part)])


def _in_place(table: Table, ids: np.ndarray, batch: int) -> Callable[[], None]:
    from mindspore import Tensor  # noqa: PLC0415

    from mindspore_rl.replay.operator import TableGather  # noqa: PLC0415
    from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell  # noqa: PLC0415

    cell, rng = CompiledCell(TableGather(table)), np.random.default_rng(1)
    first = Tensor(np.zeros(batch, np.int32))

    def step() -> None:
        *_, whole = cell(Tensor(rng.choice(ids, batch)), first)
        assert whole.asnumpy().all()  # waits for the kernel

    return step


def _copied(table: Table, ids: np.ndarray, batch: int) -> Callable[[], None]:
    use_threads(len(os.sched_getaffinity(0)))
    rng, driver = np.random.default_rng(1), gpu.entered()
    host = table.buffers(batch)
    locks = [PageLock(array.ctypes.data, array.nbytes) for array in host.values()]
    device = ctypes.c_void_p()
    driver.cuMemAlloc_v2(ctypes.byref(device), sum(array.nbytes for array in host.values()))

    def step() -> None:
        assert table.gather(rng.choice(ids, batch), host).all()
        at = device.value or 0
        for array in host.values():
            size, source = ctypes.c_size_t(array.nbytes), ctypes.c_void_p(array.ctypes.data)
            driver.cuMemcpyHtoDAsync_v2(ctypes.c_void_p(at), source, size, None)
            at += array.nbytes
        driver.cuCtxSynchronize()
        assert locks  # until here

    return step


def _has(python: str, library: str) -> bool:
    command = [python, "-c", f"import {library}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
