"""Names of an agent's parameters."""

from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def named_parameters(trainer: Any, scope: str) -> list[tuple[str, Parameter]]:
    """Returns parameters with names, `actor.network...` or `learner...`, each once.

    Args:
        trainer: the trainer; its actor and learner may share cells.
        scope: `actor` (the actor's parameters), `all` (those of both, without the optimisers' own
            state) or `state` (everything).
    """
    found: list[tuple[str, Parameter]] = []
    seen: set[int] = set()
    for owner in ("actor",) if scope == "actor" else ("actor", "learner"):
        cell = getattr(trainer, owner)
        skipped = _optimiser_state(cell) if scope == "all" else set()
        for name, parameter in cell.parameters_and_names():
            if id(parameter) not in seen | skipped:
                seen.add(id(parameter))
                found.append((f"{owner}.{name}", parameter))
    return found


def set_parameter(parameter: Parameter, value: np.ndarray) -> None:
    """Overwrites a parameter in place.

    It does not use `set_data`: with MindSpore 2.10 on the CPU, later updates are then lost.
    """
    ops.assign(parameter, Tensor(np.array(value), parameter.dtype))


def write_parameters(parameters: list[Parameter], data: np.ndarray) -> None:
    """Overwrites parameters between calls of the cells that read them.

    On the CPU it writes into their memory, as native cells do: a twentieth of the time of `assign`.

    Args:
        parameters: one rank's parameters, in the order of the message.
        data: `[bytes]` uint8, their values, concatenated.
    """
    in_memory = mindspore.get_context("device_target") == "CPU"
    start = 0
    for parameter in parameters:
        there = parameter.asnumpy()
        size = there.nbytes
        value = data[start : start + size].view(there.dtype).reshape(there.shape)
        start += size
        if in_memory:
            there[...] = value
        else:
            set_parameter(parameter, value)


def _optimiser_state(cell: nn.Cell) -> set[int]:
    state: set[int] = set()
    for _, part in cell.cells_and_names():
        if isinstance(part, nn.Optimizer):
            trained = {id(parameter) for parameter in part.parameters}
            state |= {id(p) for p in part.get_parameters()} - trained
    return state
