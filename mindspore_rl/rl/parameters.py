"""Names of an agent's parameters."""

from collections.abc import Iterator
from types import MethodType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.platform.user_modules import is_users

_CONTAINERS = (list, tuple, dict)
_STATE = (Parameter, nn.Cell)


def get_parameters(self: nn.Cell, expand: bool = True) -> tuple[Parameter, ...]:
    """Returns the parameters that `nn.Cell.get_parameters` yields, see `list_parameters`."""
    return self.listed_parameters if expand else self.listed_own_parameters


def trainable_params(self: nn.Cell, recurse: bool = True) -> list[Parameter]:
    """Returns the parameters that `nn.Cell.trainable_params` returns."""
    return list(self.listed_trainable if recurse else self.listed_own_trainable)


LISTING = (get_parameters, trainable_params)
"""Functions that MindSpore compiles in place of the methods of their names, which it does not."""
LISTS = ("listed_parameters", "listed_own_parameters", "listed_trainable", "listed_own_trainable")
SHARES = tuple(f"{function.__name__}_share" for function in LISTING)
"""Of a cell in an `nn.CellList`: its parameters that are of no cell before it."""
OF_EVERY_CELL = {
    *vars(nn.Cell()),
    "_cell_init_args",
    *LISTS,
    *SHARES,
    *(f.__name__ for f in LISTING),
}
"""Names of attributes that are no cell's own."""


def find_cells(cell: nn.Cell, prefix: str = "") -> None:
    """Makes MindSpore find the cells that a cell keeps in lists, tuples and dictionaries.

    MindSpore looks into none of them. The parameters are named as in an `nn.CellList`:
    `critics.0.weight`. Cells of MindSpore itself are left alone.

    Args:
        cell: a cell, which may have cells that keep others so.
        prefix: of the names of its parameters.
    """
    for name, value in _own_attributes(cell).items():
        _find_in(cell, name, value, prefix)
    for name, part in list(cell._cells.items()):
        if part is not None:
            find_cells(part, f"{prefix}{name}.")


def keep_attribute(owner: nn.Cell, name: str, value: Any) -> None:
    """Sets an attribute of an actor or a learner and finds the cells in it, see `find_cells`."""
    if isinstance(value, nn.Cell):
        find_cells(value)  # before they get the attribute's name too
    nn.Cell.__setattr__(owner, name, value)
    for key in [key for key in owner._cells if key.startswith(f"{name}.")]:
        del owner._cells[key]  # of the attribute's former value
    _find_in(owner, name, value, "")


def find_parameters(*owners: nn.Cell) -> None:
    """Makes MindSpore find what it misses: Parameters that cells keep in lists and the like.

    Also those of objects of the user's classes that are no cells, `self.counts.table`, and the
    cells of such objects, whose classes get MindSpore's mark (`jit_class`): without it, a compiled
    cell takes `self.counts.table` for a constant. A Parameter of a network is found already. So
    this comes when all attributes are set.
    """
    known = {id(parameter) for owner in owners for parameter in owner.get_parameters()}
    for owner in owners:
        for prefix, cell in list(owner.cells_and_names()):
            for name, value in _own_attributes(cell).items():
                parts = [(name, value), *_within(value, name, set())]
                for holder in (part for _, part in parts if _is_users_object(part)):
                    if any(isinstance(p, _STATE) for _, p in _within(holder, "", set())):
                        type(holder).__ms_class__ = True
                for path, part in parts[1:]:
                    place = f"{prefix}.{path}" if prefix else path
                    if isinstance(part, Parameter) and id(part) not in known:
                        known.add(id(part))
                        part.name = place
                        cell._params[path] = part
                    elif isinstance(part, nn.Cell):
                        new = {id(parameter) for parameter in part.get_parameters()} - known
                        if new and cell._cells.get(path) is not part:
                            known |= new
                            part.update_parameters_name(f"{place}.")
                            cell._cells[path] = part


def list_parameters(*owners: nn.Cell) -> None:
    """Makes MindSpore compile `for p in self.network.get_parameters()`, in an update or a loss.

    Each cell gets its parameters as a tuple: those that it has now.
    """
    cells = [part for owner in owners for _, part in owner.cells_and_names()]
    _list_shares([cell for cell in cells if isinstance(cell, nn.CellList)])
    for cell in cells:
        every, own = (tuple(nn.Cell.get_parameters(cell, expand)) for expand in (True, False))
        trained = (tuple(p for p in found if p.requires_grad) for found in (every, own))
        for name, parameters in zip(LISTS, (every, own, *trained), strict=True):
            object.__setattr__(cell, name, parameters)
        for function in LISTING:
            name = function.__name__
            if getattr(type(cell), name) is getattr(nn.Cell, name):  # else the user's own
                object.__setattr__(cell, name, MethodType(function, cell))


def _list_shares(lists: list[nn.CellList]) -> None:
    """Notes what the cells of lists add to the parameters of these, unless two lists differ."""
    found: dict[nn.Cell, list[tuple[Parameter, ...]]] = {}
    for cells in lists:
        seen: set[int] = set()
        for cell in cells:
            share = tuple(p for p in nn.Cell.get_parameters(cell) if id(p) not in seen)
            seen |= set(map(id, share))
            found.setdefault(cell, []).append(share)
    for cell, shares in found.items():
        if all([*map(id, share)] == [*map(id, shares[0])] for share in shares):
            trained = tuple(p for p in shares[0] if p.requires_grad)
            for name, parameters in zip(SHARES, (shares[0], trained), strict=True):
                object.__setattr__(cell, name, parameters)


def give_own_memory(*owners: nn.Cell) -> None:
    """Copies the value of each Parameter that has its memory in common with another.

    `target.set_data(online)` and `load_param_into_net` give a Parameter the memory of the other:
    an assignment to one would change both in the plain loop, and one alone in a job. From here on
    `set_data` keeps a Parameter's memory.
    """
    known: dict[int, Parameter] = {}
    for parameter in (p for owner in owners for p in owner.get_parameters()):
        address = parameter.asnumpy().ctypes.data
        if parameter.nbytes and known.setdefault(address, parameter) is not parameter:
            parameter.set_data(parameter.copy())
        parameter.set_data = MethodType(_set_data, parameter)


def _set_data(parameter: Parameter, data: Any) -> Parameter:
    """Overwrites a Parameter in its own memory, as a compiled cell does."""
    ops.assign(parameter, Tensor(data, parameter.dtype))
    return parameter


def _own_attributes(cell: nn.Cell) -> dict[str, Any]:
    """Returns the attributes that a cell's class sets, without those of MindSpore's own cells."""
    if type(cell).__module__.partition(".")[0] == "mindspore":
        return {}
    return {k: v for k, v in vars(cell).items() if k not in OF_EVERY_CELL}


def _find_in(owner: nn.Cell, name: str, value: Any, prefix: str) -> None:
    for path, part in _within(value, name):
        if isinstance(part, nn.Cell) and owner._cells.get(path) is not part:
            find_cells(part)
            part.update_parameters_name(f"{prefix}{path}.")
            owner._cells[path] = part


def _within(value: Any, path: str, objects: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yields the parts of nested lists, tuples and dictionaries, with their paths.

    Args:
        value: one of these, or anything else, which has no parts.
        path: its path.
        objects: if given, also yields the attributes of objects of the user's classes that are no
            cells; those in which it has been, which may hold each other.
    """
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, _CONTAINERS):
        parts = enumerate(value)
    elif objects is not None and id(value) not in objects and _is_users_object(value):
        objects.add(id(value))
        parts = getattr(value, "__dict__", {}).items()
    for key, part in parts:
        yield f"{path}.{key}", part
        yield from _within(part, f"{path}.{key}", objects)


def _is_users_object(value: Any) -> bool:
    """Returns whether a value is an object of a class of the user's that is no cell."""
    return not isinstance(value, (nn.Cell, type)) and is_users(type(value).__module__)


def trainable(networks: Any) -> list[Parameter]:
    """Returns the trainable parameters of networks, in order.

    Args:
        networks: a cell or a Parameter, or a list, tuple or dictionary of them.
    """
    if isinstance(networks, nn.Cell):
        return list(networks.trainable_params())
    if isinstance(networks, Parameter):
        return [networks]
    parts = networks.values() if isinstance(networks, dict) else networks
    return [parameter for part in parts for parameter in trainable(part)]


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
