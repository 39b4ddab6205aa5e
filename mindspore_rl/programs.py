"""Loads algorithms from files, the user's and the project's."""

import contextlib
import inspect
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mindspore_rl import config as configuration
from mindspore_rl.errors import MsrlError
from mindspore_rl.platform.names import check_name
from mindspore_rl.platform.user_modules import load_module


def trainer_class(file: Path, package: str = "") -> type:
    """Loads the `Trainer` subclass that an algorithm's file defines.

    Args:
        file: the user's file, or a run's copy of it.
        package: see `load_module`.

    Raises:
        MsrlError: the file's name is invalid, it does not define exactly one trainer, or the
            trainer has no `Config`.
    """
    from mindspore_rl.api import Trainer  # noqa: PLC0415  (imports MindSpore)

    check_name(f"algorithm {file}", file.stem)
    module = load_module(file, package)
    found = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Trainer) and c.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(c.__name__ for c in found) or "none"
        raise MsrlError(
            f"{file} defines {names}; expected one subclass of mindspore_rl.api.Trainer (an "
            "environment is named by --env FILE.py:CLASS, a policy by --policy FILE.py)"
        )
    if not hasattr(found[0], "Config"):
        raise MsrlError(f"{file}: {found[0].__name__} has no `Config`; expected a frozen dataclass")
    return found[0]


def modules_of(trainer: Any) -> list[ModuleType]:
    """Returns the modules that define a trainer and its cells, without MindSpore's own."""
    parts = [trainer]
    for owner in (trainer.actor, trainer.learner):
        parts += [cell for _, cell in owner.cells_and_names()]
    names = dict.fromkeys(type(part).__module__ for part in parts)
    return [sys.modules[name] for name in names if name.split(".")[0] != "mindspore"]


@contextlib.contextmanager
def seeded(*words: int) -> Iterator[None]:
    """Context: NumPy's and Python's own generators are seeded; then they are as they were."""
    import numpy as np  # noqa: PLC0415

    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        np.random.seed(words)
        random.seed(str(words))
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


def make_trainer(cls: Any, config: Any, spec: Any) -> Any:
    """Makes a trainer in the same way in every process.

    MindSpore's, NumPy's and Python's generators are seeded with the configuration's seed, so that
    randomly initialised parameters are the same everywhere. The states of NumPy's and Python's
    generators are restored afterwards. Networks and Parameters in lists, tuples and dictionaries of
    the actor and the learner become parts of these, each with its own memory.
    """
    import mindspore  # noqa: PLC0415

    from mindspore_rl.rl import parameters  # noqa: PLC0415

    with seeded(config.seed):
        mindspore.set_seed(config.seed)  # seeds NumPy too
        random.seed(config.seed)
        trainer = cls(config, spec)
    owners = [getattr(trainer, name, None) for name in ("actor", "learner")]
    cells = [owner for owner in owners if isinstance(owner, mindspore.nn.Cell)]
    for cell in cells:  # whose lists may have grown since they became attributes
        parameters.find_cells(cell)
    parameters.find_parameters(*cells)
    parameters.give_own_memory(*cells)
    parameters.list_parameters(*cells)
    return trainer


def load_trainer(
    algorithm: dict[str, str], config: dict[str, Any], spec: Any, assignments: Sequence[str] = ()
) -> Any:
    """Makes an algorithm's trainer from a plan.

    Args:
        algorithm: the plan's `file` and `package` of the algorithm.
        config: the plan's configuration, see `config.to_dict`.
        spec: the environment's spec.
        assignments: `key=value` texts that override the configuration.
    """
    cls: Any = trainer_class(Path(algorithm["file"]), algorithm.get("package", ""))
    resolved = configuration.resolve(cls.Config, None, {}, assignments, base=config)
    return make_trainer(cls, resolved, spec)
