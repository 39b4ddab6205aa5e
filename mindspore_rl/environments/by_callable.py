"""Names an environment that Python code gives as a class or a function.

Each rank imports the file of such a function, and a run keeps a copy of it; so it is a name like
any other, `path/to/file.py:Name`.
"""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

from mindspore_rl.environments.gym.library import library_of
from mindspore_rl.errors import ConfigError

_IN_A_FILE = (
    "define it at the top level of a .py file, and give env=NAME from there, or env='FILE.py:NAME'"
)


def name_of(env: Any) -> Any:
    """Returns the name of an environment.

    Args:
        env: a class, or a function that makes an environment, at the top level of a file; anything
            else that is no environment, such as a name, is returned as it is.

    Raises:
        ConfigError: no other process could find it: a lambda, a function in another one, a class of
            a notebook, or an environment instead of what makes it.
    """
    made = inspect.isclass(env) or inspect.isfunction(env)
    if not made and library_of(type(env)) is not None:
        own_id = getattr(getattr(env, "spec", None), "id", None)
        way = f"give its id, env={own_id!r}, or for its wrappers" if own_id else "give"
        raise ConfigError(
            f"env is {env!r}, one environment, expected what makes one in each process: {way} a "
            f"function that returns one: {_IN_A_FILE}"
        )
    if not callable(env):
        return env
    if not made:
        raise ConfigError(
            f"env is {env!r}, expected a class or a function: {_IN_A_FILE}; what it is made with "
            "stands behind its name, as in 'FILE.py:NAME,size=8'"
        )
    name, module = env.__name__, sys.modules.get(env.__module__)
    if name == "<lambda>" or name != env.__qualname__:
        what = "a lambda" if name == "<lambda>" else f"{env.__qualname__}, inside another one"
        raise ConfigError(f"env is {what}, which other processes cannot find: {_IN_A_FILE}")
    file = Path(getattr(module, "__file__", None) or "")
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(
            f"env is {name} of {env.__module__}, which is no file that other processes can import "
            f"(of a notebook, %%writefile makes one): {_IN_A_FILE}"
        )
    if getattr(module, name, None) is not env:
        raise ConfigError(f"env is not the {name} that {file} has: {_IN_A_FILE}")
    if env.__module__ == "__main__" and not _is_guarded(file):
        raise ConfigError(
            f"env is {name} of {file}, and importing that file would train again: put its training "
            f"under `if __name__ == '__main__':`, or {_IN_A_FILE}"
        )
    return f"{file.resolve()}:{name}"


def _is_guarded(file: Path) -> bool:
    """Returns whether a script does something only if it is not imported."""
    ifs = (node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.If))
    return any("__name__" in ast.unparse(node.test) for node in ifs)
