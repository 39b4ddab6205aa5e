"""Sets MindSpore's device and mode for this process."""

import gc

import mindspore as ms
from mindspore.ops import composite

# Each collection would walk the 600,000 objects of MindSpore's import, and there is a new one with
# each 700 objects that a compilation makes.
gc.freeze()
gc.set_threshold(50_000, 20, 100)


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


# In a compiled cell MindSpore's `x += y` changes x for all who hold it (of `0.0 + x` that is x
# itself, an input of the cell). Here it makes another array, as it does uncompiled.
for _function in (_add, _sub, _mul, _div, _floordiv, _mod):
    for _other in ("Tensor", "Number"):
        getattr(composite, f"augassign{_function.__name__}").register("Tensor", _other)(_function)


def use(device: str = "CPU", *, compiled: bool = False) -> None:
    """Sets them for the whole process; a device can be set once, before anything is computed.

    Args:
        device: CPU or GPU. Whoever plans or evaluates takes the CPU, also when ranks have GPUs: its
            results are the same from one time to the next.
        compiled: as graphs, or operation by operation.
    """
    if device == "GPU":
        ms.set_device(device, 0)  # the only one that a rank sees; a group would take its own number
    elif ms.get_context("device_target") != device:
        ms.set_device(device)
    mode = ms.GRAPH_MODE if compiled else ms.PYNATIVE_MODE
    ms.set_context(mode=mode, jit_syntax_level=ms.STRICT)
