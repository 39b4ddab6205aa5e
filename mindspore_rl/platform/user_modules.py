"""Imports the user's files with the files beside them, and copies them into a run.

The folder of a file becomes a package with a unique name, so that two folders may both have a
`parts.py`. In its files, `from parts import Torso` finds the parts.py beside them, as in a script.
"""

import ast
import builtins
import contextlib
import functools
import keyword
import os
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Iterator, Mapping
from importlib.abc import Loader
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mindspore_rl.errors import MsrlError, described
from mindspore_rl.platform.cache import make_folder, write_file, writing

INSTALLED = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
)
"""Folders of installed libraries."""
OWN = Path(__file__).parents[1]
OURS = OWN.name
FOLDER, POLICY_FOLDER, ENVIRONMENT_FOLDER = "program", "policy", "environment"
"""Folders of a run with copies of its algorithm, its policy and the user's environment."""
GYMS = {
    "Acrobot": "1",
    "Ant": "234",
    "BipedalWalker": "3",
    "BipedalWalkerHardcore": "3",
    "Blackjack": "1",
    "CarRacing": "2",
    "CartPole": "01",
    "CliffWalking": "0",
    "FrozenLake": "1",
    "FrozenLake8x8": "1",
    "HalfCheetah": "234",
    "Hopper": "234",
    "Humanoid": "234",
    "HumanoidStandup": "24",
    "InvertedDoublePendulum": "24",
    "InvertedPendulum": "24",
    "LunarLander": "2",
    "LunarLanderContinuous": "2",
    "MountainCar": "0",
    "MountainCarContinuous": "0",
    "Pendulum": "1",
    "Pusher": "24",
    "Reacher": "24",
    "Swimmer": "234",
    "Taxi": "3",
    "Walker2d": "234",
}
"""gym's environments with their versions; an id without a version means the newest."""


class _Folder(ModuleType):
    """A folder of the user's, as a package.

    Attributes:
        read: checksums of the requested files when they were read, by name, see `_sources`.
    """

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.folder, self.__path__ = folder, [str(folder)]
        self.read: dict[str, int] = {}

    def is_of(self, name: str, sources: int) -> bool:
        """Returns whether all files imported here are unchanged; `sources` is that of `name`."""
        if name in self.read:
            return self.read[name] == sources
        return all(_sources(self.folder / other) == was for other, was in self.read.items())


class _Finder:
    """Finds modules of such packages, before Python's own finders do."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not path or not isinstance(sys.modules.get(name.partition(".")[0]), _Folder):
            return None
        found = FileFinder(path[0], (_Loader, SOURCE_SUFFIXES)).find_spec(name)
        return found if found is not None and found.loader is not None else None


class _Loader(SourceFileLoader):
    """Loads a module whose imports prefer files of its folder."""

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the source: cached byte code can miss a change of equal size in a second."""
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        package = module.__name__.partition(".")[0]
        folder: Any = sys.modules[package]
        own = Path(self.path)

        def find(
            name: str, scope: Any = None, local: Any = None, names: Any = (), level: int = 0
        ) -> ModuleType:
            top = name.partition(".")[0]
            if level or _sibling(folder.folder, top) in (None, own):
                return builtins.__import__(name, scope, local, names, level)
            found = builtins.__import__(f"{package}.{name}", scope, local, names, 0)
            return found if names else sys.modules[f"{package}.{top}"]

        vars(module)["__builtins__"] = {**vars(builtins), "__import__": find}
        super().exec_module(module)


def _sibling(folder: Path, name: str) -> Path | None:
    """Returns the file that a name in an `import` refers to, if it is in the folder."""
    files = (folder / f"{name}.py", folder / name / "__init__.py")
    return next((file for file in files if name not in ("", OURS) and file.is_file()), None)


def package_of(file: Path, kind: str = "program") -> str:
    """Names the package of a file's folder; the name is the same in every process."""
    return f"msrl_{kind}_{zlib.crc32(str(file.resolve().parent).encode()):08x}"


def load_module(file: Path, package: str = "", error: type[MsrlError] = MsrlError) -> ModuleType:
    """Imports a file, under a name that is the same in every process.

    Reloads its folder's whole package if the file or one that it imports has changed.

    Args:
        file: the user's file, or a copy of it.
        package: name for the folder of the user's file, see `package_of`; required for a copy.
        error: the exception to raise.

    Raises:
        MsrlError: the file is missing or cannot be imported.
    """
    file = file.resolve()
    if not file.is_file():
        raise error(f"{file} does not exist; expected a Python file")
    package = package or package_of(file)
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    folder, sources = sys.modules.get(package), _sources(file)
    if not (isinstance(folder, _Folder) and folder.is_of(file.name, sources)):
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            del sys.modules[name]
        folder = sys.modules[package] = _Folder(package, file.parent)
    folder.read[file.name] = sources
    stem = file.stem
    if not stem.isidentifier() or keyword.iskeyword(stem):  # generated code imports it by name
        stem = "file_" + re.sub(r"\W", "_", stem)
    name = f"{package}.{stem}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        with same_folder():
            return run_module(name, file, _Loader(name, str(file)))
    except (Exception, SystemExit) as found:
        own = isinstance(found, MsrlError)  # says what is wrong in its own words
        text = str(found) if own else f"cannot be imported: {described(found)}"
        raise (type(found) if own else error)(
            f"{_place(found, package) or file}: {text}"
        ) from found


@contextlib.contextmanager
def same_folder() -> Iterator[None]:
    """Context: the process is in the same folder afterwards, wherever a user's code goes."""
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # closed by that code
            os.fchdir(folder)
            os.close(folder)


def run_module(name: str, file: Path, loader: Loader | None = None) -> ModuleType:
    """Runs a file as the module `name`, which is removed if that fails."""
    spec = spec_from_file_location(name, file, loader=loader)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def passing_module(name: str, file: Path) -> Iterator[ModuleType]:
    """Context: a file runs as the module `name`, which is removed at the end: others would find it.

    Within, its source is found by its name, as MindSpore looks for it.
    """
    module = run_module(name, file)
    try:
        yield module
    finally:
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _place(error: BaseException, package: str) -> str:
    """Returns the innermost line of a package that an error passed through."""
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(f"{package}.")
    ]
    return lines[-1] if lines else ""


def keep(file: Path, folder: Path) -> Path:
    """Copies a file, and the files of its folder that it imports or names in strings, to a folder.

    Returns: the copy.
    """
    file = file.resolve()
    needed = {file}
    _follow(file, file.parent, needed)
    for found in needed:
        copy = folder / found.relative_to(file.parent)
        with writing(copy):
            make_folder(copy.parent)
        write_file(copy, found.read_bytes())
    return folder / file.name


def kept(folder: Path, file: str) -> Path:
    """Returns a folder's copy of a file, or the file itself if there is no copy."""
    copy = folder / Path(file).name
    return copy if copy.is_file() else Path(file)


def unchanged(file: Path, folder: Path) -> Path:
    """Returns the file if it and all files copied with it are unchanged, else the folder's copy."""
    copy = folder / file.name
    if not copy.is_file():
        return file
    for found in folder.rglob("*"):
        if not found.is_file() or found.suffix == ".pyc":
            continue
        source = file.parent / found.relative_to(folder)
        if not source.is_file() or source.read_bytes() != found.read_bytes():
            return copy
    return file


def split_environment(name: str) -> tuple[Path, str] | None:
    """Splits "path/to/file.py:Name" into file and name; None: not an environment of the user's."""
    path, colon, own = name.rpartition(":")
    return (Path(path), own) if colon and path.endswith(".py") else None


def unchanged_environment(name: str, run_dir: Path) -> str:
    """Applies `unchanged` to a user's environment; other names stay as they are."""
    found = split_environment(name)
    if found is None:
        return name
    return f"{unchanged(found[0], run_dir.resolve() / ENVIRONMENT_FOLDER)}:{found[1]}"


def as_recorded(about: Mapping[str, Any]) -> str:
    """Returns the name under which the environment of a plan or a checkpoint is still the same.

    Plans of earlier versions do not tell the library: a plain id was gym's where gym had it. They
    do not tell whether there was an action mask: Taxi's was not taken.
    """
    name: str = about["environment"]
    found = re.match(r"(?:gym\w*:)?((\w+?)(?:-v(\d))?)(?:,|$)", name)
    if found is None or found[2] not in GYMS:
        return name
    if "action_mask" not in about and found[2] == "Taxi" and ",action_mask=" not in name:
        name += ",action_mask=false"
    if "library" in about or ":" in name or (found[3] or "") not in GYMS[found[2]]:
        return name
    return f"gym:{name}"


def _named(text: str, folder: Path) -> Path | None:
    """Returns the file of a folder that a string names, such as "map.txt" or "maps/small.txt"."""
    if not os.path.exists(os.path.join(folder, text)):  # resolving a path costs ten times as much
        return None
    try:
        found = (folder / text).resolve()
        return found if found.is_relative_to(folder) and found.is_file() else None
    except (OSError, ValueError):  # no valid file name
        return None


def _sources(file: Path) -> int:
    """Computes a checksum of a Python file and of those files of its folder that it imports."""
    file, found = file.resolve(), 0
    needed = {file}
    with contextlib.suppress(OSError, SyntaxError, ValueError):  # reported by the import
        _follow(file, file.parent, needed)
    for source in sorted(needed):
        if source.suffix == ".py" and source.is_file():
            name = str(source.relative_to(file.parent)).encode()
            found = zlib.crc32(source.read_bytes(), zlib.crc32(name, found))
    return found


def _follow(file: Path, folder: Path, needed: set[Path]) -> None:
    """Adds the files of a folder that a file imports or names in strings, recursively."""
    texts, imports = _mentioned(file.read_bytes())
    needed |= {named for text in texts if (named := _named(text, file.parent))}
    for level, name in imports:
        found = _sibling(file.parents[level - 1] if level else folder, name)
        if found is None:
            continue
        for more in found.parent.rglob("*.py") if found.name == "__init__.py" else [found]:
            if more not in needed and more.is_relative_to(folder):
                needed.add(more)
                _follow(more, folder, needed)


@functools.lru_cache(maxsize=1000)
def _mentioned(code: bytes) -> tuple[list[str], list[tuple[int, str]]]:
    """Finds the strings in a source that may name files, and the level and name of each import."""
    texts: list[str] = []
    imports: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[^\x00-\x1f]{1,200}", node.value):
                texts.append(node.value)
        elif isinstance(node, ast.Import):
            imports += [(0, alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            imports += [(node.level, name.partition(".")[0]) for name in names]
    return texts, imports


# ---- modules -----------------------------------------------------------------------------------


@functools.cache
def is_foreign(module: str) -> bool:
    """Returns whether a module is of Python, MindSpore or NumPy, whose values do not change."""
    root = module.partition(".")[0]
    return root in ("mindspore", "numpy", "builtins") or root in sys.stdlib_module_names


def is_installed(module: str) -> bool:
    """Returns whether a module belongs to an installed library, which its file identifies."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return is_foreign(module) or (
        file.startswith(INSTALLED) and not file.startswith(f"{OWN}{os.sep}")
    )


def is_users(module: str) -> bool:
    """Returns whether a module is the user's: neither a library's nor this project's."""
    return not is_installed(module) and module.partition(".")[0] != OURS
