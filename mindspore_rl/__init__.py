"""Distributed reinforcement learning on MindSpore: write an algorithm, choose where it runs."""

from typing import TYPE_CHECKING, Any

from mindspore_rl.platform import former_names

if TYPE_CHECKING:
    from mindspore_rl.trained.run import Run, load, train

__all__ = ["Run", "__version__", "load", "train"]
__version__ = "0.1.0"

former_names.accept()


def __getattr__(name: str) -> Any:
    """Imports what trains when it is asked for: a rank without tensors does without all of it."""
    if name not in ("Run", "load", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mindspore_rl.trained import run  # noqa: PLC0415

    return getattr(run, name)
