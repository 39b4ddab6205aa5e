"""Commands that start this Python anew, without imports from the working folder.

`python -m` and `python -c` search the working folder for modules first: a numpy.py there would
replace numpy.
"""

import contextlib
import gc
import importlib.util
import os
import sys
import types
from pathlib import Path

LAST = "MSRL_LAST_FOLDER"
_ASCEND = "mindspore.ops._op_impl.aicpu"
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

    Its 440 tables of Ascend's operators, which CPUs and GPUs do not use, and garbage collections
    would take a third of the processor time.
    """
    collect_rarely()
    found = importlib.util.find_spec("mindspore")
    if found is not None and "mindspore" not in sys.modules:
        module = types.ModuleType(_ASCEND)
        folders = found.submodule_search_locations or ()
        module.__path__ = [os.path.join(folder, "ops", "_op_impl", "aicpu") for folder in folders]
        sys.modules[_ASCEND] = module


def collect_rarely() -> None:
    """Makes garbage collections rare: each walks all objects, 600,000 of them MindSpore's.

    Python's default starts one for every 700 new objects, of an import or a compilation.
    """
    gc.set_threshold(50_000, 20, 100)
