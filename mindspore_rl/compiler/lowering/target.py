"""Lowering target: device, cells and folder, for the writers of source."""

from dataclasses import dataclass

from mindspore_rl.compiler.ir.ir import Item, walk


@dataclass(frozen=True)
class Target:
    """Parameters of code generation besides the graph.

    Attributes:
        num_envs: environments on all workers together.
        num_steps: steps of a rollout.
        steps_per_iteration: environment steps of all environments together in an iteration.
        in_graph: whether the environment is compiled.
        native: whether cells may become native code. A loop then reads its count from the cell, so
            that the differential check can run a single turn.
    """

    num_envs: int
    num_steps: int
    steps_per_iteration: int
    in_graph: bool
    native: bool = False


def capacity(items: tuple[Item, ...]) -> int:
    """Returns the rows of the trajectory buffer: those of its largest sample."""
    samples = (op for op, _ in walk(items) if op.kind == "replay_sample")
    return max((op.attr["rows"] for op in samples), default=0)
