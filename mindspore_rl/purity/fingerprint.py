"""Cache key of compiled code: a hash of all sources, values and input types that it depends on.

A graph depends on the sources that the cell reaches, on the values found there (numbers, constant
tensors, other cells, closures, attributes of classes and modules) and on the types of its inputs
and parameters. The seed of a configuration counts only if code outside constructors names it;
otherwise it acts through values that constructors store, and those are hashed.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from mindspore_rl.platform.user_modules import INSTALLED, OWN
from mindspore_rl.purity.reached import Walk, is_plain, name_of

DYNAMIC = {
    *("__import__", "_getframe", "eval", "exec", "gc", "importlib", "inspect", "modules"),
    *("builtins", "pkgutil", "runpy", "traceback"),
}
"""Names by which code reaches modules that it does not import."""


class Unknown(Exception):
    """Raised for a value that cannot be hashed, because its contents cannot be seen."""


def fingerprint(value: Any, inputs: tuple = ()) -> str:
    """Hashes everything that the graphs of a value's cells depend on.

    Args:
        value: a cell, or an object that holds cells.
        inputs: arrays or nested tuples of them, of which shapes and dtypes count.

    Returns: 32 hexadecimal digits; equal fingerprints mean equal graphs.

    Raises:
        Unknown: the value reaches something whose contents cannot be seen.
    """
    walk = _Digest()
    walk.add(value, "")
    walk.add(_types(inputs), "")
    found = walk.digest.hexdigest() + _sources(walk.modules)
    return hashlib.sha256(found.encode()).hexdigest()[:32]


class _Digest(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()

    def say(self, *words: Any) -> None:
        self.digest.update(repr(words).encode())

    def unknown(self, kind: str) -> None:
        raise Unknown(kind)

    def attributes(self, value: Any) -> dict[str, Any]:
        parts = super().attributes(value)
        if "seed" in parts and dataclasses.is_dataclass(value) and not _names_seeds():
            del parts["seed"]
        return parts


def _types(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_types, value))
    if isinstance(value, (Tensor, np.ndarray)):
        return str(value.dtype), tuple(value.shape)
    return type(value).__name__


def _sources(reached: set[str]) -> str:
    """Hashes the sources of this project and of all modules that are reached or imported by them.

    Installed modules count by file size and time. Other loaded modules do not count: they depend on
    the history of the process.
    """
    digest = hashlib.sha256(f"{sys.version} {mindspore.__version__} {_own()}".encode())
    reached = set(reached)
    for name, module in _imported(reached):
        try:
            digest.update(name.encode() + Path(module.__file__ or "").read_bytes())
        except OSError as error:
            raise Unknown(f"the source of {name}, which is removed") from error
        for key, value in sorted(vars(module).items()):
            if not key.startswith("__") and is_plain(value):
                digest.update(f"{key} {value!r}".encode())
            reached.add(_module_of(value))
    for name in sorted(reached & set(sys.modules)):
        file = getattr(sys.modules[name], "__file__", None)
        if file and file.startswith(INSTALLED):
            found = Path(file).stat()
            digest.update(f"{name} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()


def _users_modules() -> list[tuple[str, types.ModuleType]]:
    """Returns the loaded modules that are neither installed nor this project's, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith((*INSTALLED, f"{OWN}{os.sep}")):
            found[name] = module
    return sorted(found.items())


def _imported(reached: set[str]) -> list[tuple[str, types.ModuleType]]:
    """Returns the user's modules that are reached, with all that they import, by name."""
    loaded = dict(_users_modules())
    waiting = sorted(reached & set(loaded))
    found: dict[str, types.ModuleType] = {}
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = loaded[name]
            mentioned = _mentioned(loaded[name])
            waiting += loaded if mentioned is None else sorted(mentioned & set(loaded))
    order = sorted(found, key=lambda name: (name in reached, name))  # what is reached stands
    return sorted({name_of(name): found[name] for name in order}.items())


def _mentioned(module: types.ModuleType) -> set[str] | None:
    """Returns the names of modules that a module's code can reach; None: any loaded module."""
    path = Path(module.__file__ or "")
    try:
        imports, words = _imports(path, path.stat().st_mtime_ns, module.__package__ or "")
    except (OSError, SyntaxError, ValueError, ImportError):  # changed or removed since its import
        return None
    if words & DYNAMIC:
        return None
    found = {*imports, *map(_module_of, vars(module).values())}
    # `import a.b` runs a as well.
    return {".".join(name.split(".")[:n]) for name in found for n in range(1, name.count(".") + 2)}


def _module_of(value: Any) -> str:
    """Returns the name of the module that a value is, or that defines it or its class."""
    return str(getattr(value, "__module__", getattr(value, "__name__", "")))


@functools.lru_cache(maxsize=1000)
def _imports(path: Path, _changed_ns: int, package: str) -> tuple[set[str], set[str]]:
    """Returns the names that a source file imports, and all identifiers in it."""
    imports, words = set(), set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            imports |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
    return imports, words | {name.partition(".")[0] for name in imports}


def _names_seeds() -> bool:
    """Returns whether the user's code names a seed outside constructors."""
    for _, module in _users_modules():
        for value in vars(module).values():
            own = getattr(value, "__module__", None) == module.__name__
            if own and "seed" in _names_in(value):
                return True
    return False


def _names_in(value: Any) -> Iterator[Any]:
    """Yields the names and constants in the code of a function or class.

    Constructors and the methods that `dataclass` generates, which name every field, are left out.
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
    """Hashes this project's sources, loaded or not."""
    digest = hashlib.sha256()
    for path in sorted(p for kind in ("py", "h", "cpp", "cu") for p in OWN.rglob(f"*.{kind}")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
