"""Rows of arrays made of numbers: of `h = ops.zeros((num_envs, 8))` a replica takes its own.

Such an array has an entry for each environment and comes from no value that has them, so every
replica makes all of it. The numbers of its environments then pick its rows.
"""

from dataclasses import replace

from mindspore_rl.compiler.ir.ir import Expr, Op, Program, walk, with_ops
from mindspore_rl.plan.value import Value
from mindspore_rl.platform.names import unused

OPERATORS = "mindspore_rl.rl.operators"
OWN_ROWS = "rows:"
"""Beginning of the name of an operation that takes a replica's rows."""


def take_own_rows(program: Program, num_envs: int) -> Program:
    """Lets replicas take their rows of arrays that are made of none.

    Arrays in a loop inside an iteration, and those with several rows for each environment, stay
    `unsplittable`.

    Args:
        program: the program, with its values.
        num_envs: number of environments of the job.
    """
    found = {
        op.name: op
        for op, loops in walk(program.body)
        if op.name in program.unsplittable
        and all(loop.kind == "iterations" for loop in loops)
        and len(op.targets) == 1
        and _is_rows(program.values[op.targets[0]])
    }
    if not found:
        return program
    imports, values = program.imports, dict(program.values)
    names = {name for name, *_ in imports} | values.keys()
    alias = next((name for name, *of in imports if of == [OPERATORS, "own_rows"]), "")
    if not alias:
        alias = unused("own_rows", names)
        imports = (*imports, (alias, OPERATORS, "own_rows"))
    parts: dict[str, tuple[Op, ...]] = {}
    for op in found.values():
        (target,) = op.targets
        whole, numbers = unused(f"{target}_of_all", names), unused(f"{target}_rows", names)
        axis = values[target].axis
        values[whole] = replace(values[target], axis=None)
        values[numbers] = Value((num_envs,), "int32", 0)
        call = Expr(f"{alias}({whole}, {numbers}, {axis})")
        parts[op.name] = (
            replace(op, targets=(whole,)),
            Op(f"env_index:{op.name}", "env_index", (numbers,), (), (), op.where),
            Op(f"{OWN_ROWS}{op.name}", "glue", (target,), (call,), (whole, numbers), op.where),
        )
    left = tuple(name for name in program.unsplittable if name not in found)
    body = with_ops(program.body, parts)
    return replace(program, body=body, imports=imports, values=values, unsplittable=left)


def _is_rows(value: Value) -> bool:
    """Returns whether a value is an array with one row for each environment."""
    return not value.parts and value.axis is not None and value.per_env == 1
