"""Rules with effects: those that overwrite rows of parameters, and our own operators."""

from mindspore_rl.codegen.ops.registry import Call, Operand, Table

ROWS = Table()


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
