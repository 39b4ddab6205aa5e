"""Lines of generated source text."""

from mindspore_rl.compiler.ir.ir import Op
from mindspore_rl.errors import ProgramError

INDENT = "    "


def indented(lines: list[str]) -> list[str]:
    """The lines of a block, one step to the right."""
    return [INDENT + line if line else line for line in lines]


def assignment(targets: tuple[str, ...], call: str) -> str:
    """A call and what its results are called."""
    return f"{', '.join(targets)} = {call}" if targets else call


def no_writer(op: Op, missing: str) -> ProgramError:
    """The error of an operation that nothing writes."""
    return ProgramError(f"{op.where}\n  {op.name} cannot be written: {missing}")


def class_name(region: str) -> str:
    """`act_2` -> `Act2`."""
    return "".join(part.capitalize() for part in region.split("_"))
