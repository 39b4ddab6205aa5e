"""Former names of modules, for one version: files of users and of older runs import them."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = "mindspore_rl"
MOVED = {
    "environments.by_name": "environments.registry",
    "graph": "compiler",
    "graph.distribution_policy": "policy",
    "networks": "rl.networks",
    "operators": "rl.operators",
    "recurrent": "rl.recurrent",
    "runs": "trained.run",
    "runtime.rank.cell": "runtime.rank.cell_parts",
    "training": "jobs.training",
}
"""The present module for each former name."""


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = name.startswith(f"{PACKAGE}.") and name.removeprefix(f"{PACKAGE}.") in MOVED
        return ModuleSpec(name, self) if found else None

    def exec_module(self, module: ModuleType) -> None:
        former = module.__name__.removeprefix(f"{PACKAGE}.")
        sys.modules[module.__name__] = importlib.import_module(f"{PACKAGE}.{MOVED[former]}")


def accept() -> None:
    """Makes the former names importable."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
