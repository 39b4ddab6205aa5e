"""Commands that start this Python anew, without imports from the working folder.

`python -m` and `python -c` search the working folder for modules first: a numpy.py there would
replace numpy.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAST = "MSRL_LAST_FOLDER"
_ASCEND = ("ops", "_op_impl", "aicpu")
_RARE = ("scipy", "scipy.io", "scipy.ndimage", "tqdm")
_NOT_HERE = "import sys; del sys.path[0]"
_MODULE = f"{_NOT_HERE}; import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"


def command(*words: str, version: tuple[int, int] = sys.version_info[:2]) -> list[str]:
    """Returns a command line of this interpreter that does not import from the working folder.

    Args:
        words: `-m MODULE ARGUMENT...` or `-c CODE ARGUMENT...`.
        version: of the interpreter; Python 3.10 lacks the option `-P`.
    """
    option, what, *arguments = words
    assert option in ("-m", "-c")
    if version >= (3, 11):
        return [sys.executable, "-P", *words]
    if option == "-m":
        return [sys.executable, "-c", _MODULE, what, *arguments]
    return [sys.executable, "-c", f"{_NOT_HERE}\n{what}", *arguments]


def environment() -> dict[str, str]:
    """Returns variables that let such a process find this package and this process's modules.

    If this process finds modules in the working folder, the new process does too, after all other
    places: `module:ID` may name an environment there.
    """
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    last = ""
    with contextlib.suppress(OSError):  # the folder has been deleted
        last = os.getcwd()
    if all(os.path.abspath(path) != last for path in sys.path):
        last = ""
    return {"PYTHONPATH": os.pathsep.join(paths), LAST: last}


def look_last() -> None:
    """Appends the working folder of the process that started this one to the search path."""
    if folder := os.environ.get(LAST):
        sys.path.append(folder)


def hasten_mindspore() -> None:
    """Makes the import of MindSpore cheaper, to be called before it.

    Its 440 tables of Ascend's operators, which CPUs and GPUs do not use, SciPy and tqdm, which it
    imports for metrics of images, and garbage collections would take 40 % of the processor time.
    """
    collect_rarely()
    if "mindspore" not in sys.modules:
        sys.meta_path.insert(0, _MindSporeFinder())


class _MindSporeFinder(importlib.abc.MetaPathFinder):
    """Finds MindSpore, once, and keeps what it does not need from being imported with it."""

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Returns the specification of MindSpore's package with another execution."""
        if fullname != "mindspore":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(fullname)
        if found is not None and found.loader is not None:
            folders = [os.path.join(f, *_ASCEND) for f in found.submodule_search_locations or ()]
            ascend = types.ModuleType(".".join(("mindspore", *_ASCEND)))
            ascend.__path__ = folders
            sys.modules[ascend.__name__] = ascend
            execute = found.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                with _later(*_RARE):
                    execute(module)

            found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


@contextlib.contextmanager
def _later(*names: str) -> Iterator[None]:
    """A context in which these modules, unless imported before, are imported at their first use."""
    placeholders = {name: _Placeholder(name) for name in names if name not in sys.modules}
    sys.modules.update(placeholders)
    try:
        yield
    finally:
        for name in placeholders:
            del sys.modules[name]


class _Placeholder(types.ModuleType):
    """A module whose attributes are found when they are used."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Attribute(self.__name__, name)


class _Attribute:
    """A function or a submodule of a module that is imported when it is used."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._found()(*args, **kwargs)

    def _found(self) -> Any:
        module, name = self._place
        return getattr(importlib.import_module(module), name)


def collect_rarely() -> None:
    """Makes garbage collections rare: each walks all objects, 600,000 of them MindSpore's.

    Python's default starts one for every 700 new objects, of an import or a compilation.
    """
    gc.set_threshold(50_000, 20, 100)
