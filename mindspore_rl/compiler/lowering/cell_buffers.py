"""Emits a cell's buffers and the loops that fill them some rows at a time.

Rows of an unrolled loop are collected and written together: 1 us a row, against 8 us one by one
and 25 us with `buffer[index] = value`. The buffer is then `[rows / UNROLL, UNROLL, ...]`. Booleans
are stored as int8, which MindSpore can write on the CPU.
"""

from collections.abc import Iterable

from mindspore_rl.compiler.ir.ir import Loop, Op
from mindspore_rl.compiler.lowering.cell_plan import UNROLL, CellPlan, Row
from mindspore_rl.compiler.lowering.source_text import indented
from mindspore_rl.plan.value import Value


def buffer_setup(plan: CellPlan, row: Row) -> list[str]:
    """Emits the lines that make a buffer and register it with the runtime where that reads it."""
    buffer = f"self.{row.buffer}"
    if row.ends:
        name = plan.region.name + row.buffer.removeprefix("episodes")
        return [f'{buffer} = w.episode_buffer("{name}", {row.leading})']
    value = plan.values[row.variable]
    shape = grouped(row.leading, extents(value))
    dtype = "int8" if value.dtype == "bool" else value.dtype
    lines = [f'{buffer} = parts.buffer({shape}, "{dtype}", "{row.buffer}")']
    if row.kept:
        lines.append(f'{row.kept}.add({buffer}, "{value.dtype}")')
    return [*lines, f'w.keep("{row.told}", {buffer})'] if row.told else lines


def write_row(plan: CellPlan, row: Row) -> list[str]:
    """Emits the write of a row, or its collection with the other rows of its bundle."""
    if row.loop:
        pairs = zip(_collected(row), (row.variable, *row.ends), strict=True)
        return [f"{name} = {name} + ({variable},)" for name, variable in pairs]
    return [_write(row.buffer, row.index, _entry(plan, row, (row.variable, *row.ends)))]


def load(plan: CellPlan, name: str, buffer: str, rows: int) -> str:
    """Emits the line that sets a variable to the first rows of a buffer."""
    value, row = plan.values[name], plan.buffers[buffer]
    cut = "" if rows == row.rows else f"[0:{rows}]"
    shape = f".reshape({grouped((), extents(value))})" if row.loop else ""
    cast = ".astype(ms.bool_)" if value.dtype == "bool" else ""
    return f"{name} = self.{buffer}{cut}{shape}{cast}"


def unrolled_loop(plan: CellPlan, loop: Loop, body: list[str]) -> list[str]:
    """Emits a compiled `while` over bundles of turns, with a Python `for` inside each bundle."""
    bundle, turn = f"{loop.index}_bundle", f"{loop.index}_turn"
    ops = [op for op in loop.body if isinstance(op, Op)]
    rows = [row for op in ops for row in plan.rows[op.name] if row.loop == loop.name]
    tables = dict.fromkeys(op.args[0] for op in ops if op.name in plan.sliced)
    lines = [f"{name} = ()" for row in rows for name in _collected(row)]
    lines += [_rows_of_bundle(table, plan.values[table], bundle) for table in tables]
    lines += [f"for {turn} in range({UNROLL}):"]
    lines += indented([f"{loop.index} = {bundle} * {UNROLL} + {turn}", *body])
    for row in rows:
        stacks = [f"ms.ops.stack({name})" for name in _collected(row)]
        lines.append(_write(row.buffer, bundle, _entry(plan, row, stacks)))
    return [
        f"{bundle} = ms.Tensor(0, ms.int32)",
        f"while {bundle} < {(loop.count or 1) // UNROLL}:",
        *indented([*lines, f"{bundle} = {bundle} + 1"]),
    ]


def row_at_hand(table: str, loop: Loop) -> str:
    """Returns an expression: the row of a table for this turn of an unrolled loop."""
    return f"{table}_rows[{loop.index}_turn]"


def _rows_of_bundle(table: str, value: Value, bundle: str) -> str:
    """Emits the line that takes all rows of a bundle from a table at once."""
    shape = grouped((value.shape[0] // UNROLL, UNROLL), extents(value)[1:])
    return f"{table}_rows = ms.ops.unstack(ms.ops.gather({table}.reshape({shape}), {bundle}, 0))"


def _collected(row: Row) -> list[str]:
    return [f"{row.buffer}_{variable}" for variable in (row.variable, *row.ends)]


def _entry(plan: CellPlan, row: Row, values: Iterable[str]) -> str:
    """Returns the expression that is written for a row, or for the rows of a bundle."""
    first, *ends = values
    if row.ends:
        ended = f"ms.ops.logical_or({', '.join(ends)}).astype(ms.float32)"
        return f"ms.ops.stack(({first}, {ended}), {1 if row.loop else 0})"
    return f"{first}.astype(ms.int8)" if plan.values[row.variable].dtype == "bool" else first


def _write(buffer: str, index: str, value: str) -> str:
    if index.isdecimal():
        return f"self.{buffer}[{index}] = {value}"
    place = f"({index}).reshape(1)"
    return f"ms.ops.scatter_update(self.{buffer}, {place}, ({value}).expand_dims(0))"


def extents(value: Value) -> list[str]:
    """Returns the extents of a value on this replica, as expressions in the cell."""
    found = [str(extent) for extent in value.shape]
    if value.axis is not None:
        found[value.axis] = f"{value.per_env} * self.num_envs"
    if value.agent_axis is not None:
        found[value.agent_axis] = "self.num_agents"
    return found


def grouped(leading: tuple[int, ...], found: list[str]) -> str:
    """Returns a shape as the source text of a tuple."""
    first = "".join(f"{extent}, " for extent in leading)
    return f"({first}{', '.join(found)}{',' if len(found) == 1 else ''})"
