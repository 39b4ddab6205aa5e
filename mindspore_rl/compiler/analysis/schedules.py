"""Finds schedules: values that depend on the environment steps alone, as a learning rate."""

import re
import sys
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.compiler.ir.ir import Op, Program, walk
from mindspore_rl.rl.operators import to_array

_TAKEN = {"glue", "copy", "boundary"}
"""Kinds of operations in a schedule, besides `env_steps` and constants."""


def schedules(program: Program, trainer: Any, env_steps: int) -> dict[str, float]:
    """Evaluates the schedules of a program at some point of a run.

    Args:
        program: the program, as `build` returns it.
        trainer: the trainer that it was built from.
        env_steps: environment steps taken so far.

    Returns: the scalar schedules by name, or by source line if they have no name; intermediate
        values are left out.
    """
    names = {"trainer": trainer, "actor": trainer.actor, "learner": trainer.learner}
    names |= {alias: getattr(sys.modules[module], name) for alias, module, name in program.imports}
    known: dict[str, Any] = {}
    made_by: dict[str, Op] = {}
    used: set[str] = set()
    for op, _ in walk(program.body):
        follows = bool(made_by.keys() & set(op.reads)) and set(op.reads) <= known.keys()
        if op.kind == "env_steps":
            known[op.targets[0]] = Tensor(np.float32(env_steps))
        elif op.kind == "constant" or (op.kind in _TAKEN and follows and len(op.targets) == 1):
            known[op.targets[0]] = eval(op.args[0], {**names, **known})  # noqa: S307  (the program's own)
        else:
            continue
        if op.kind != "constant":
            made_by[op.targets[0]] = op
            used |= set(op.reads)
    last = {name: op for name, op in made_by.items() if name not in used}
    values = {_name(op): to_array(known[name]) for name, op in last.items()}
    return {name: float(value) for name, value in values.items() if value.size == 1}


def _name(op: Op) -> str:
    text = op.where.text.strip()
    name = re.sub(r"_\d+$", "", op.targets[0])
    return name if re.search(rf"\b{name}\b", text) else f"`{text}`"
