"""Walks everything that a value and its code can reach: attributes, globals, closures, classes."""

import contextlib
import enum
import functools
import hashlib
import os
import re
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.platform.user_modules import OWN, is_foreign, is_installed
from mindspore_rl.rl.parameters import OF_EVERY_CELL

_NOTHING = (type(None), type(...), type(NotImplemented))
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, np.dtype, range, slice, *_NOTHING)
_BEGINNING = "init_tensor"
"""Of MindSpore's embeddings: the values that the table began with, which may be in its memory."""
_PROPERTIES = (property, functools.cached_property)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def is_plain(value: Any) -> bool:
    """Returns whether a value is a number, a text or a tuple of such."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


class Walk:
    """Visitor of everything that is reachable from values; visits each object once.

    Parameters are reported by name and type only, because their values are state that ranks share.

    Attributes:
        path: the current place as source text: `trainer.learner.table['x']`.
        modules: names of modules from which something is reached.
        functions: the functions that were reached.
        frozen: the getters among them that a compiled cell does not call: those of properties of
            objects with Parameters that are no cells.
    """

    def __init__(self) -> None:
        self.path = ""
        self.modules: set[str] = set()
        self.functions: list[types.FunctionType] = []
        self.frozen: list[types.FunctionType] = []
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that no other has its id

    def say(self, *words: Any) -> None:
        """Receives what was found at the current path, as plain values."""
        raise NotImplementedError

    def unknown(self, kind: str) -> None:
        """Receives the kind of a value whose contents cannot be seen."""
        raise NotImplementedError

    def add(self, value: Any, path: str) -> None:
        """Visits a value, which is at a path."""
        before, self.path = self.path, path
        try:
            self._add(value)
        finally:
            self.path = before

    def _add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.say(type(value).__name__, value)
            return
        if id(value) in self._seen:
            self.say("again", self._seen[id(value)][0])
            return
        self._seen[id(value)] = len(self._seen), value
        self._from(str(type(value).__module__), type(value).__qualname__)
        if not isinstance(value, type):
            self._class_of(value)
        try:
            self._parts(value)
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            self.unknown(type(value).__qualname__)  # an object that does not behave as its class

    def _from(self, module: str, name: str) -> None:
        self.modules.add(module)
        self.say(name_of(module), name)

    def _parts(self, value: Any) -> None:
        if isinstance(value, (tuple, list)):
            self.say(len(value))
            for number, part in enumerate(value):
                self.add(part, f"{self.path}[{number}]")
        elif isinstance(value, (dict, types.MappingProxyType)):
            self.say(len(value))
            for name, part in value.items():
                self.add(name, self.path)
                self.add(part, f"{self.path}[{name!r}]")
        elif isinstance(value, (set, frozenset)):
            for part in sorted(value, key=repr):
                self.add(part, self.path)
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                self.unknown("an array of objects")
                return
            self.say(value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())
        elif isinstance(value, Parameter):
            self.say(value.name, tuple(value.shape), str(value.dtype), value.requires_grad)
        elif isinstance(value, Tensor):
            self.add(value.asnumpy(), self.path)
        elif isinstance(value, nn.Cell):
            self._cell(value)
        elif isinstance(value, ops.Primitive):
            self.say(value.name)
            self._named({k: v for k, v in vars(value).items() if not k.startswith("_")})
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords), self.path)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add(value.__wrapped__, self.path)  # not its annotations
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.add(value.__self__, self.path)
            self.add(value.__func__, self.path)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.BuiltinFunctionType):
            self._from(str(value.__module__), value.__qualname__)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, (enum.Enum, Path, mindspore.dtype.Type)):
            self.say(str(value))
        elif isinstance(value, re.Pattern):
            self.say(value.pattern, value.flags)
        elif hasattr(value, "__dict__"):
            self._named(self.attributes(value))
        else:
            self.unknown(type(value).__qualname__)

    def attributes(self, value: Any) -> dict[str, Any]:
        """Returns an object's attributes without those that cached properties derive."""
        return {
            name: part
            for name, part in vars(value).items()
            if not isinstance(getattr(type(value), name, None), functools.cached_property)
        }

    def _named(self, values: dict[str, Any]) -> None:
        self.say(len(values))
        for name, value in values.items():
            self.add(name, self.path)
            self.add(value, f"{self.path}.{name}")

    def _cell(self, cell: nn.Cell) -> None:
        own = {k: v for k, v in vars(cell).items() if k not in OF_EVERY_CELL}
        if type(cell).__module__.startswith("mindspore."):
            own.pop(_BEGINNING, None)
        parts = (cell._params, cell._buffers, cell._cells, cell._primitives)
        self.say(cell.training, [len(part) for part in parts])
        for part in (*parts, own):
            self._named(dict(part))
        for parameter in cell.get_parameters(expand=False):
            self.add(parameter, f"{self.path}.{parameter.name}")

    # ---- classes and modules ---------------------------------------------------------------

    def _class_of(self, value: Any) -> None:
        cls = type(value)
        if not is_foreign(str(cls.__module__)):
            self.add(cls, cls.__qualname__)

    def _class(self, cls: type) -> None:
        """Visits a class's attributes, which code may have set and its objects read."""
        self._from(str(cls.__module__), cls.__qualname__)
        if is_foreign(str(cls.__module__)):
            return
        if getattr(cls, "__ms_class__", False) is True:
            properties = (part for part in vars(cls).values() if isinstance(part, _PROPERTIES))
            self.frozen += [_behind(part) for part in properties]
        installed = is_installed(str(cls.__module__))
        for name, value in ((name, _behind(part)) for name, part in vars(cls).items()):
            written = isinstance(value, types.FunctionType) and value.__code__.co_filename[0] != "<"
            if name.startswith("__") and not written or isinstance(value, _DESCRIPTORS):
                continue
            if name == "_abc_impl" or type(value).__name__ == "_tuplegetter":
                continue
            if written and installed and is_installed(str(value.__module__)):
                continue  # its file identifies it
            if not installed or written or isinstance(value, dict) or _is_simple(value):
                self.say(name)
                self.add(value, f"{cls.__qualname__}.{name}")
        for base in cls.__bases__:
            self.add(base, base.__qualname__)

    def _module(self, module: types.ModuleType) -> None:
        """Visits a module used as a value; for a module that code names, see `_attributes_of`."""
        self.say(module.__name__)
        if not is_installed(module.__name__):
            found = {k: v for k, v in vars(module).items() if not k.startswith("__")}
            for name, value in found.items():
                if isinstance(value, types.ModuleType):
                    self.say(value.__name__)
                else:
                    self.add(value, f"{module.__name__}.{name}")

    def _attributes_of(
        self, module: types.ModuleType, names: Iterable[str], owner: str, inside: tuple = ()
    ) -> None:
        """Visits the attributes of a module that code with the given names can read.

        Python's modules do not count if a module of this project, the `owner`, imports them:
        `os.environ` and `sys.path` differ from job to job, and what it makes of them is visited.
        """
        self.say(module.__name__)
        if module.__name__.partition(".")[0] == "mindspore" or module in inside:
            return
        known = is_foreign(module.__name__)
        if known and owner.partition(".")[0] == OWN.name:
            return
        for name in names:
            value = vars(module).get(name)
            if isinstance(value, types.ModuleType):
                self._attributes_of(value, names, module.__name__, (*inside, module))
            elif name in vars(module) and not (known and not _is_simple(value)):
                self.say(name)
                self.add(value, f"{module.__name__}.{name}")

    # ---- functions -------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> None:
        module = str(function.__module__)
        self._from(module, function.__qualname__)
        self.functions.append(function)
        free = function.__code__.co_freevars
        for name, cell in zip(free, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it has no contents yet
                if name != "hash_obj":  # the time at which MindSpore wrapped it
                    self.add(cell.cell_contents, f"{function.__qualname__}: {name}")
        self.add(function.__defaults__, f"{function.__qualname__}: defaults")
        self.add(function.__kwdefaults__, f"{function.__qualname__}: defaults")
        if is_foreign(module):
            return
        self.add(dict(vars(function)), f"{function.__qualname__}: attributes")
        installed = is_installed(module)
        names = sorted(self._code(function.__code__))
        for name in names:
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            if installed and not _is_simple(value):
                continue  # its file identifies it
            self.say(name)
            if isinstance(value, types.ModuleType):
                self._attributes_of(value, names, module)
            else:
                self.add(value, f"{module}.{name}")

    def _code(self, code: types.CodeType) -> set[str]:
        """Visits a function's code. Returns: the names in it."""
        self.say(code.co_code, code.co_varnames, code.co_names)
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._code(constant)
            else:
                self.add(constant, self.path)
        return names


def _is_simple(value: Any) -> bool:
    """Returns whether a value is plain, a list or set of plain values, or `os.environ`."""
    if isinstance(value, (list, set, frozenset)):
        return all(map(is_plain, value))
    return is_plain(value) or value is os.environ


def name_of(module: str) -> str:
    """Returns a module's name, without the run's number in the names of generated fragments."""
    head, _, rest = module.partition("_")
    number, _, name = rest.partition("_")
    return f"fragment_{name}" if head == "fragment" and number.isdigit() else module


def _behind(value: Any) -> Any:
    """Returns the function behind a descriptor of a class, other values unchanged."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, functools.cached_property) else value
