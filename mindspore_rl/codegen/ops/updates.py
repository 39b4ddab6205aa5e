"""Rules of updates: element-wise primitives that overwrite arguments, as optimisers' steps.

They are fused with the element-wise nodes around them: one pass over a parameter clips its
gradient, takes the step and moves the target network.
"""

from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.codegen.ops.elementwise import literal
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

UPDATES = {name: primitive.update for name, primitive in PRIMITIVES.items() if primitive.update}
"""C++ statements; `{0}` is an element of the first argument."""


def statements(node: Value, args: list[str]) -> str:
    """Returns the C++ statements of an update, given names of its arguments' elements.

    Raises:
        Unsupported: it has an option that has no native form.
    """
    attrs, target = node.attrs, node.args[0].type
    nesterov = attrs.get("nesterov") or attrs.get("use_nesterov")
    if not attrs.get("update_slots", True) or nesterov and node.op not in ("SGD", "Adam"):
        raise Unsupported(f"{node.op} with these attributes")  # MindSpore's formula is another one
    if node.op.startswith("Assign"):
        given = node.args[1].type
        if given.dtype != target.dtype or given.size != target.size:
            raise Unsupported(f"{node.op} of {given} to {target}")
    options = {"step": "{1}", "last": "step = {3};"}
    if nesterov:
        options = {"step": "({6} * {1} + (1.0f - {6}) * {9})", "last": "step += {4} * {3};"}
    numbers = {name: literal(attrs.get(name, 0.0), "float32") for name in _NUMBERS}
    options = {name: text.format(*args, *[""] * 10) for name, text in options.items()}
    return UPDATES[node.op].format(*args, **options, **numbers)


_NUMBERS = ("weight_decay", "dampening")
