"""Rules with effects: those that overwrite parameters (`effects.WRITES`), and our own operators."""

import re

from mindspore_rl.codegen.ops.elementwise import literal
from mindspore_rl.codegen.ops.registry import Call, Operand, Table, span
from mindspore_rl.mindir.primitives import PRIMITIVES

ROWS = Table()
OPTIMISERS = [op for op, one in PRIMITIVES.items() if one.kernel in ("adam", "optimiser")]


@ROWS.row("assign")
def _assign(call: Call) -> None:
    target, value = call.args[:2]
    _same_type(call, target, value)
    call.line(
        f"memmove({target.pointer}, {value.pointer}, {target.size} * sizeof(*{target.pointer}));"
    )


@ROWS.row("assign_add")
def _assign_add(call: Call) -> None:
    target, value = call.args[:2]
    _same_type(call, target, value)
    sign = "+" if call.node.op == "AssignAdd" else "-"
    call.line("#pragma GCC ivdep")
    call.line(
        f"for (int64_t i = 0; i < {target.size}; i++) "
        f"{target.pointer}[i] {sign}= {value.pointer}[i];"
    )


def _same_type(call: Call, target: Operand, value: Operand) -> None:
    if target.type.dtype != value.type.dtype or target.size != value.size:
        raise call.unsupported()


@ROWS.row("scatter")
def _scatter(call: Call) -> None:
    target, index, value = call.args[:3]
    _, rows, row = target.split(0)
    change = "=" if call.node.op == "ScatterUpdate" else "+="
    call.line(f"for (int64_t i = 0; i < {index.size}; i++) {{")
    call.line(f"  const int64_t at = {index.pointer}[i];")
    call.line(f"  if (at < 0 || at >= {rows}) return FAILED;")
    call.line(
        f"  for (int64_t j = 0; j < {row}; j++) "
        f"{target.pointer}[at * {row} + j] {change} {value.pointer}[i * {row} + j]; }}"
    )


@ROWS.row("adam")
def _adam(call: Call) -> None:
    pointers = [call.args[position].pointer for position in (0, 1, 2, 9)]
    numbers = [call.args[position].pointer + "[0]" for position in range(3, 9)]
    power1, power2, rate, beta1, beta2, epsilon = numbers
    nesterov = str(call.node.attrs.get("use_nesterov", False)).lower()
    p, m, v, g = pointers
    call.line(f"{{ const float scale = {rate} * sqrtf(1.0f - {power2}) / (1.0f - {power1});")
    call.line(f"  const float beta1 = {beta1}, beta2 = {beta2}, epsilon = {epsilon};")
    call.in_parts(
        "#pragma GCC ivdep",
        span("i", call.args[0].size, call.parts),
        f"  adam<{nesterov}>({p} + i, {m} + i, {v} + i, scale, beta1, beta2, epsilon, {g}[i]);",
    )
    call.line("}")


@ROWS.row("optimiser")
def _optimiser(call: Call) -> None:
    """Emits an optimiser's update, element by element, from `_UPDATES`.

    `p` is the parameter and `g` its gradient; other assigned names are the optimiser's state.
    """
    first = call.args[0]
    attrs = {"decay": 0.0, "dampening": 0.0, **call.node.attrs}
    names, lines = _UPDATES[call.node.op]
    if not attrs.get("update_slots", True):
        raise call.unsupported()
    if attrs.get("nesterov") or attrs.get("use_nesterov"):
        if call.node.op != "SGD":  # MindSpore computes another formula there
            raise call.unsupported()
        lines = lines.replace("step = $sum;", "step += $momentum * $sum;")
    call.line("{")
    for name, arg in zip(names.split(), call.args, strict=False):
        if name == "g" or re.search(rf"\${name} -?=", lines):
            call.line(f"  {arg.c_type} *const {name}_ = ({arg.c_type} *){arg.pointer};")
            lines = re.sub(rf"\${name}\b", f"{name}_[i]", lines)
        else:
            call.line(f"  const float {name}_ = {arg.pointer}[0];")
            lines = re.sub(rf"\${name}\b", f"{name}_", lines)
    call.line(f"  const float weight_decay = {literal(attrs.get('weight_decay', 0.0), 'float32')};")
    call.line(f"  const float damping = {literal(attrs['dampening'], 'float32')};")
    call.in_parts("#pragma GCC ivdep", f"{span('i', first.size, call.parts)} {{ {lines} }}")
    call.line("}")


_UPDATES = {
    "AdamWeightDecay": (
        "p m v rate beta1 beta2 epsilon decay g",
        "$m = $beta1 * $m + (1.0f - $beta1) * $g; $v = $beta2 * $v + (1.0f - $beta2) * $g * $g; "
        "$p -= $rate * ($m / (sqrtf($v) + $epsilon) + $decay * $p);",
    ),
    "ApplyAdagrad": (
        "p sum rate g",
        "$sum = $sum + $g * $g; $p -= $rate * $g / sqrtf($sum);",
    ),
    "ApplyMomentum": (
        "p sum rate g momentum",
        "$sum = $sum * $momentum + $g; $p -= $rate * $sum;",
    ),
    "ApplyRMSProp": (
        "p square moment rate g decay momentum epsilon",
        "$square = $decay * $square + (1.0f - $decay) * $g * $g; "
        "$moment = $momentum * $moment + $rate * $g / sqrtf($square + $epsilon); $p -= $moment;",
    ),
    "SGD": (
        "p g rate sum momentum first",
        "float step = $g + weight_decay * $p; if ($momentum > 0.0f) { "
        "$sum = $first > 0.0f ? step : $sum * $momentum + (1.0f - damping) * step; $first = 0.0f; "
        "step = $sum; } $p -= $rate * step;",
    ),
}


@ROWS.row("custom")
def _custom(call: Call) -> None:
    """Emits the call of one of this project's ahead-of-time operators, by MindSpore's ABI."""
    if call.node.attrs.get("func_type") != "aot":
        raise call.unsupported()
    ins = [arg for arg in call.args if isinstance(arg, Operand)]
    every = [*ins, *call.outs]
    pointers = ", ".join(f"(void *){o.pointer}" for o in every)
    call.line(f"{{ void *data[] = {{{pointers}}};")
    call.line(f"  int ranks[] = {{{', '.join(str(len(o.shape)) for o in every)}}};")
    for i, operand in enumerate(every):
        call.line(f"  int64_t s{i}[] = {{{', '.join(map(str, operand.shape)) or 0}}};")
    call.line(f"  int64_t *shapes[] = {{{', '.join(f's{i}' for i in range(len(every)))}}};")
    names = ", ".join(f'"{o.type.dtype}"' for o in every)
    call.line(f"  const char *dtypes[] = {{{names}}};")
    function = call.function(call.node.attrs["func_name"])
    call.line(f"  if ({function}({len(every)}, data, ranks, shapes, dtypes, nullptr, nullptr))")
    call.line("    return FAILED; }")
