"""The device and the mode in which this process computes."""

import gc

import mindspore as ms

# Each collection would walk the 600,000 objects of MindSpore's import, and there is a new one with
# each 700 objects that a compilation makes.
gc.freeze()
gc.set_threshold(50_000, 20, 100)


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
