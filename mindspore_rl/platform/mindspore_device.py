"""Sets MindSpore's device and mode for this process."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
from mindspore.ops import composite

from mindspore_rl.platform import interpreter, mindspore_parser

# Garbage collections need not walk the objects of MindSpore's import.
gc.freeze()
interpreter.collect_rarely()


def _add(x, y):  # type: ignore[no-untyped-def]
    return x + y


def _sub(x, y):  # type: ignore[no-untyped-def]
    return x - y


def _mul(x, y):  # type: ignore[no-untyped-def]
    return x * y


def _div(x, y):  # type: ignore[no-untyped-def]
    return x / y


def _floordiv(x, y):  # type: ignore[no-untyped-def]
    return x // y


def _mod(x, y):  # type: ignore[no-untyped-def]
    return x % y


# In a compiled cell MindSpore's `x += y` changes x for all its references (of `0.0 + x` this is x
# itself, an input of the cell). These functions make a new array, as uncompiled code does.
for _function in (_add, _sub, _mul, _div, _floordiv, _mod):
    for _other in ("Tensor", "Number"):
        getattr(composite, f"augassign{_function.__name__}").register("Tensor", _other)(_function)
mindspore_parser.take_forms()


AVX2 = 0x7
"""`dnnl_cpu_isa_avx2` of oneDNN's interface."""


def _use_fast_convolutions() -> None:
    """Limits MindSpore's oneDNN to AVX2, unless it has computed before.

    With AVX-512, oneDNN 3.10 takes its reference code for convolutions in MindSpore's layout: 1
    GFLOP/s, where AVX2's products do 30 to 50. Products of matrices are as fast with either.
    """
    path = Path(ms.__file__).parent / "lib" / "libdnnl.so.3"
    with contextlib.suppress(OSError, AttributeError):  # another version of MindSpore
        ctypes.CDLL(str(path)).dnnl_set_max_cpu_isa(AVX2)


def use(device: str = "CPU", *, compiled: bool = False) -> None:
    """Sets device and mode of this process; the device only once, before anything is computed.

    Args:
        device: CPU or GPU. Planning and evaluation use the CPU even if ranks have GPUs, because its
            results are reproducible.
        compiled: whether cells run as compiled graphs, instead of operation by operation.
    """
    _use_fast_convolutions()
    if device == "GPU":
        ms.set_device(device, 0)  # a rank sees only this one; a group would choose another number
    elif ms.get_context("device_target") != device:
        ms.set_device(device)
    if not compiled and device == "CPU":
        # MindSpore's threads would wait for each other at every operator: planning and the plain
        # loop take up to eight times the processor time with them.
        ms.runtime.launch_blocking()
    mode = ms.GRAPH_MODE if compiled else ms.PYNATIVE_MODE
    ms.set_context(mode=mode, jit_syntax_level=ms.STRICT)


@contextlib.contextmanager
def without_jit() -> Iterator[None]:
    """Runs functions under `mindspore.jit`, such as an optimiser's, uncompiled meanwhile.

    For a single call, compilation takes far longer than the call.
    """
    before = os.environ.get("MS_JIT")
    os.environ["MS_JIT"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MS_JIT"]
        else:
            os.environ["MS_JIT"] = before
