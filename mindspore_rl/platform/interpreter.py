"""Commands that start this Python anew, without imports from the working folder.

`python -m` and `python -c` look for modules in the working folder first: a numpy.py there would be
run in the place of numpy.
"""

import contextlib
import os
import sys
from pathlib import Path

LAST = "MSRL_LAST_FOLDER"
_NOT_HERE = "import sys; del sys.path[0]"
_MODULE = f"{_NOT_HERE}; import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"


def command(*words: str, version: tuple[int, int] = sys.version_info[:2]) -> list[str]:
    """A command line of this interpreter.

    Args:
        words: `-m MODULE ARGUMENT...` or `-c CODE ARGUMENT...`.
        version: of the interpreter; Python 3.10 has no option for this.
    """
    option, what, *arguments = words
    assert option in ("-m", "-c")
    if version >= (3, 11):
        return [sys.executable, "-P", *words]
    if option == "-m":
        return [sys.executable, "-c", _MODULE, what, *arguments]
    return [sys.executable, "-c", f"{_NOT_HERE}\n{what}", *arguments]


def environment() -> dict[str, str]:
    """Variables by which such a process finds this package, and what this process finds.

    Modules of the working folder are found by it where they are by this process, after all others:
    `module:ID` may name an environment there.
    """
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    last = ""
    with contextlib.suppress(OSError):  # it has been deleted
        last = os.getcwd()
    if all(os.path.abspath(path) != last for path in sys.path):
        last = ""
    return {"PYTHONPATH": os.pathsep.join(paths), LAST: last}


def look_last() -> None:
    """Has this process look for modules, after all others, where the one that started it does."""
    if folder := os.environ.get(LAST):
        sys.path.append(folder)
