"""Lowering target: device, cells and folder, for the writers of source."""

from dataclasses import dataclass

from mindspore_rl.compiler.ir.ir import Item, walk


@dataclass(frozen=True)
class Target:
    """What code generation must know beside the graph.

    Attributes:
        num_envs: environments on all workers together.
        steps_per_iteration: of all environments together.
        native: whether cells may become native code, which is checked with one turn of each loop.
    """

    num_envs: int
    num_steps: int
    steps_per_iteration: int
    in_graph: bool
    native: bool = False


def capacity(items: tuple[Item, ...]) -> int:
    """Rows of the replay buffer: those of its largest sample."""
    samples = (op for op, _ in walk(items) if op.kind == "replay_sample")
    return max((op.attr("rows") for op in samples), default=0)
