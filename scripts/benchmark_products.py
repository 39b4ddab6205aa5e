#!/usr/bin/env python3
"""Measures matrix products on one thread: native code's against oneDNN's, of MindSpore's wheel.

    .venv/bin/python scripts/benchmark_products.py
    .venv/bin/python scripts/benchmark_products.py --only 64,512,3136,NT --repeats 200

Prints GFLOP/s of the fastest of many short repeats, in processor time of the thread, so other jobs
disturb the numbers little; they still share memory and the last cache. An operation is a product or
a sum: M * N * K * 2. N or T says whether each matrix is transposed. The last column is the largest
difference from NumPy's result, relative to its largest number.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from mindspore_rl.platform import toolchain  # noqa: E402

Shape = tuple[int, int, int, bool, bool]
SHAPES = """
64,64,64,NN 64,64,64,NT 64,512,17,NT 64,512,512,NN 64,512,512,NT 512,512,64,TN 512,512,512,NN
512,512,512,NT 512,512,512,TN 512,512,2048,TN 64,512,3136,NT 64,3136,512,NN 64,1024,1024,NN
64,1024,1024,NT 128,1024,4096,TN 64,256,256,NT 256,256,256,TN 8,512,512,NT 1,512,512,NT 8,64,64,NT
32,400,256,NN 64,81,512,NN 64,49,576,NN
"""
ENOUGH = 2e7
"""Operations of a repeat, so that it takes longer than reading the clock."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="shapes: M,N,K and NN, NT, TN or TT")
    parser.add_argument("--repeats", type=int, default=100, help="of each product (default: 100)")
    args = parser.parse_args()
    shapes = [_shape(text) for text in args.only or SHAPES.split()]
    text = "\n".join(['#include "kernels.h"', *map(_source, range(len(shapes)), shapes)])
    ours = ctypes.CDLL(str(toolchain.cell_library(text, toolchain.level())))
    theirs = _onednn()
    print("| M N K | transposed | ours | oneDNN | difference |\n|---|---|---|---|---|")
    for number, shape in enumerate(shapes):
        run = getattr(ours, f"product_{number}")
        print(_line(shape, run, theirs, args.repeats), flush=True)


def _shape(text: str) -> Shape:
    m, n, k, turned = text.split(",")
    return int(m), int(n), int(k), turned[0] == "T", turned[1] == "T"


def _source(number: int, shape: Shape) -> str:
    template = ", ".join(str(value).lower() for value in shape)
    arguments = "float *a, float *b, float *c, float *scratch, int64_t times"
    call = f"while (times--) product<{template}>(a, b, c, scratch);"
    return f'extern "C" void product_{number}({arguments}) {{ {call} }}'


def _onednn() -> Callable[..., int] | None:
    found = find_spec("mindspore")
    path = Path(found.origin).parent / "lib" / "libdnnl.so.3" if found and found.origin else None
    if path is None or not path.exists():
        return None
    function = ctypes.CDLL(str(path)).dnnl_sgemm
    long, number, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    function.argtypes = [ctypes.c_char, ctypes.c_char, long, long, long, number, pointer, long,
                         pointer, long, number, pointer, long]  # fmt: skip
    return function


def _line(shape: Shape, ours: Callable, theirs: Callable | None, repeats: int) -> str:
    m, n, k, turned_a, turned_b = shape
    a, b, c, other, scratch = map(_aligned, (m * k, n * k, m * n, m * n, 384 * 64))
    one, two = a.reshape((k, m) if turned_a else (m, k)), b.reshape((n, k) if turned_b else (k, n))
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c, scratch)]
    operations = 2.0 * m * n * k
    times = max(int(ENOUGH / operations), 1)
    seconds = [_fastest(lambda: ours(*pointers, ctypes.c_int64(times)), repeats)]
    if theirs is not None:
        letters = (b"T" if turned_a else b"N"), (b"T" if turned_b else b"N")
        given = (*letters, m, n, k, 1.0, a.ctypes.data, one.shape[1], b.ctypes.data, two.shape[1],
                 0.0, other.ctypes.data, n)  # fmt: skip
        seconds.append(_fastest(lambda: [theirs(*given) for _ in range(times)], repeats))
    wanted = (one.T if turned_a else one) @ (two.T if turned_b else two)
    off = np.abs(c.reshape(m, n) - wanted).max() / np.abs(wanted).max()
    rates = [f"{operations * times / s / 1e9:.0f}" for s in seconds] + ["-"] * (2 - len(seconds))
    turned = "NT"[turned_a] + "NT"[turned_b]
    return f"| {m} {n} {k} | {turned} | {rates[0]} | {rates[1]} | {off:.0e} |"


def _aligned(size: int) -> np.ndarray:
    """Returns random numbers that begin at a line of the cache."""
    array = np.random.default_rng(size).normal(size=size + 16).astype(np.float32)
    start = -array.ctypes.data % 64 // 4
    return array[start : start + size]


def _fastest(run: Callable[[], object], repeats: int) -> float:
    """Returns the processor time of the fastest of some runs."""
    best = np.inf
    for _ in range(repeats):
        began = time.thread_time()
        run()
        best = min(best, time.thread_time() - began)
    return float(best)


if __name__ == "__main__":
    main()
