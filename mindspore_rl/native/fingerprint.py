"""What MindSpore's graph of a cell depends on, in one number: who has seen it needs no MindSpore.

A graph is made of the sources that the cell reaches, of the values that it finds there (numbers,
constant tensors, other cells, what functions close over) and of the types of its inputs and
parameters. The seed of a configuration does not count unless code beside constructors names it:
it makes numbers, and those are found where they are kept.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

_INSTALLED = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
)
_OWN = Path(__file__).parents[1]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, range, slice)


class Unknown(Exception):
    """A value that cannot be told from another one."""


def fingerprint(value: Any, inputs: tuple = ()) -> str:
    """The same for cells, or whatever holds some, whose graphs for such inputs are the same.

    Raises:
        Unknown: it reaches something whose value cannot be seen.
    """
    walk = _Walk()
    walk.add(value)
    walk.add(_types(inputs))
    found = walk.digest.hexdigest() + _sources(walk.modules)
    return hashlib.sha256(found.encode()).hexdigest()[:32]


def _types(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_types, value))
    if isinstance(value, (Tensor, np.ndarray)):
        return str(value.dtype), tuple(value.shape)
    return type(value).__name__


def _sources(reached: set[str]) -> str:
    """Of this project, of the user's modules, and of installed ones by their size and time.

    Of installed modules only those count from which something is reached: which others are loaded
    depends on what else the process did.
    """
    digest = hashlib.sha256(f"{sys.version} {mindspore.__version__} {_own()}".encode())
    reached = set(reached)
    for name, module in _users_modules():
        digest.update(name.encode() + Path(module.__file__ or "").read_bytes())
        for key, value in sorted(vars(module).items()):
            if not key.startswith("__") and _is_plain(value):
                digest.update(f"{key} {value!r}".encode())
            reached.add(str(getattr(value, "__module__", getattr(value, "__name__", ""))))
    for name in sorted(reached & set(sys.modules)):
        file = getattr(sys.modules[name], "__file__", None)
        if file and file.startswith(_INSTALLED):
            found = Path(file).stat()
            digest.update(f"{name} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()


def _users_modules() -> list[tuple[str, types.ModuleType]]:
    """Those that are neither installed nor this project's, with their names, in order."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith((*_INSTALLED, f"{_OWN}{os.sep}")):
            found[_name(name)] = module
    return sorted(found.items())


def _names_seeds() -> bool:
    """Whether users' code names a seed, constructors aside."""
    for _, module in _users_modules():
        for value in vars(module).values():
            own = getattr(value, "__module__", None) == module.__name__
            if own and "seed" in _names_in(value):
                return True
    return False


def _names_in(value: Any) -> Iterator[Any]:
    """Names and constants in the code of a function, or of a class but for its constructor.

    And but for what `dataclass` writes, which names every field.
    """
    if isinstance(value, type):
        for key, part in vars(value).items():
            if key != "__init__":
                yield from _names_in(part)
    elif isinstance(value, property):
        yield from _names_in(value.fget)
    elif isinstance(value, (staticmethod, classmethod, types.FunctionType)):
        function: Any = value
        yield from _names_in(getattr(inspect.unwrap(function), "__code__", None))
    elif isinstance(value, types.CodeType) and value.co_filename != "<string>":
        yield from (*value.co_names, *value.co_consts)
        for constant in value.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _names_in(constant)


@functools.cache
def _own() -> str:
    """This project's sources, loaded or not."""
    digest = hashlib.sha256()
    for path in sorted(p for kind in ("py", "h", "cpp", "cu") for p in _OWN.rglob(f"*.{kind}")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _name(module: str) -> str:
    """A module's; a run's fragments have a number of their own."""
    return re.sub(r"^fragment_\d+_", "fragment_", module)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


class _Walk:
    """Through everything that can be reached, each once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.modules: set[str] = set()  # from which something is reached
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other has its id

    def _say(self, *words: Any) -> None:
        self.digest.update(repr(words).encode())

    def _from(self, module: str, name: str) -> None:
        self.modules.add(module)
        self._say(_name(module), name)

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._say(type(value).__name__, value)
            return
        if id(value) in self._seen:
            self._say("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = len(self._seen), value
        self._from(type(value).__module__, type(value).__qualname__)
        self._parts(value)

    def _parts(self, value: Any) -> None:
        if isinstance(value, (tuple, list)):
            self._say(len(value))
            for part in value:
                self.add(part)
        elif isinstance(value, dict):
            self._named(value)
        elif isinstance(value, (set, frozenset)):
            for part in sorted(value, key=repr):
                self.add(part)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise Unknown("an array of objects")
            self._say(value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())
        elif isinstance(value, Parameter):
            self._say(value.name, tuple(value.shape), str(value.dtype), value.requires_grad)
        elif isinstance(value, Tensor):
            self.add(value.asnumpy())
        elif isinstance(value, nn.Cell):
            self._cell(value)
        elif isinstance(value, ops.Primitive):
            self._say(value.name)
            self._named({k: v for k, v in vars(value).items() if not k.startswith("_")})
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.add(value.__self__)
            self.add(value.__func__)
        elif isinstance(value, (type, types.BuiltinFunctionType)):
            self._from(str(value.__module__), value.__qualname__)
        elif isinstance(value, types.ModuleType):
            self._say(value.__name__)
        elif isinstance(value, (enum.Enum, Path)) or _is_dtype(value):
            self._say(str(value))
        elif hasattr(value, "__dict__"):
            parts = dict(vars(value))
            if "seed" in parts and dataclasses.is_dataclass(value) and not _names_seeds():
                del parts["seed"]
            self._named(parts)
        else:
            raise Unknown(type(value).__qualname__)

    def _named(self, values: dict[Any, Any]) -> None:
        self._say(len(values))
        for name, value in values.items():
            self.add(name)
            self.add(value)

    def _cell(self, cell: nn.Cell) -> None:
        own = {k: v for k, v in vars(cell).items() if k not in _of_every_cell()}
        parts = (cell._params, cell._buffers, cell._cells, cell._primitives)
        self._say(cell.training, [len(part) for part in parts])
        for part in (*parts, own):
            self._named(dict(part))
        for parameter in cell.get_parameters(expand=False):
            self.add(parameter)

    def _function(self, function: types.FunctionType) -> None:
        self._from(function.__module__, function.__qualname__)
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it has no contents yet
                if name != "hash_obj":  # the time at which MindSpore wrapped it
                    self.add(cell.cell_contents)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        if function.__module__.startswith("mindspore."):
            return
        for name in sorted(self._code(function.__code__)):
            if name in function.__globals__:
                self._say(name)
                self.add(function.__globals__[name])

    def _code(self, code: types.CodeType) -> set[str]:
        """Takes a function's code; returns the names in it."""
        self._say(code.co_code, code.co_varnames, code.co_names)
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._code(constant)
            else:
                self.add(constant)
        return names


@functools.cache
def _of_every_cell() -> set[str]:
    return {*vars(nn.Cell()), "_cell_init_args"}


def _is_dtype(value: Any) -> bool:
    return isinstance(value, mindspore.dtype.Type)
