"""Loads algorithms and policies from their files, the user's own like those of the project."""

import importlib.util
import inspect
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from mindspore_rl import config as configuration
from mindspore_rl.errors import MsrlError


def load_module(file: Path) -> ModuleType:
    """Imports a file under a name that is the same in every process.

    Raises:
        MsrlError: the file is missing or cannot be imported.
    """
    file = file.resolve()
    if not file.is_file():
        raise MsrlError(f"{file} does not exist; expected a Python file")
    name = f"msrl_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MsrlError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise MsrlError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def trainer_class(file: Path) -> type:
    """The `Trainer` that an algorithm's file defines.

    Raises:
        MsrlError: it defines none or several, or one without `Config`.
    """
    from mindspore_rl.api import Trainer  # noqa: PLC0415  (imports MindSpore)

    module = load_module(file)
    found = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Trainer) and c.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(c.__name__ for c in found) or "none"
        raise MsrlError(
            f"{file} defines {names}; expected one subclass of mindspore_rl.api.Trainer"
        )
    if not hasattr(found[0], "Config"):
        raise MsrlError(f"{file}: {found[0].__name__} has no `Config`; expected a frozen dataclass")
    return found[0]


def load_policy(file: Path) -> Any:
    """The policy that a file holds as `POLICY`.

    Raises:
        MsrlError: there is none, or it is of another type.
    """
    from mindspore_rl.graph.distribution_policy import DistributionPolicy  # noqa: PLC0415

    policy = getattr(load_module(file), "POLICY", None)
    if not isinstance(policy, DistributionPolicy):
        raise MsrlError(
            f"{file}: POLICY is {type(policy).__name__}, expected a "
            "mindspore_rl.graph.distribution_policy.DistributionPolicy"
        )
    return policy


def modules_of(trainer: Any) -> list[ModuleType]:
    """The modules that define a trainer and its cells, MindSpore's own left out."""
    parts = [trainer]
    for owner in (trainer.actor, trainer.learner):
        parts += [cell for _, cell in owner.cells_and_names()]
    names = dict.fromkeys(type(part).__module__ for part in parts)
    return [sys.modules[name] for name in names if name.split(".")[0] != "mindspore"]


def load_trainer(algorithm: dict[str, str], config: dict[str, Any], spec: Any) -> Any:
    """Builds an algorithm's trainer from a plan."""
    cls: Any = trainer_class(Path(algorithm["file"]))
    return cls(configuration.resolve(cls.Config, None, {}, (), base=config), spec)
