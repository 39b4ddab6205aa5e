"""Emits the functions of a `Tiles` node: one tile, and the part of one thread."""

from mindspore_rl.codegen.cfg import Block
from mindspore_rl.codegen.emit_body import lines_of
from mindspore_rl.codegen.fusion import grouped
from mindspore_rl.codegen.memory_plan import aligned
from mindspore_rl.codegen.operands import Operands, Shared
from mindspore_rl.codegen.ops.all import WRITERS
from mindspore_rl.codegen.ops.elementwise import C_TYPES
from mindspore_rl.codegen.ops.registry import Call, Operand
from mindspore_rl.mindir.graph import Type, Value


def tile_functions(node: Value, number: int, shared: Shared) -> str:
    """Emits the functions; adds their working memory to the node as one more result.

    If parts `meet`, sums are added in pairs; the halves of the sums are left to be added.
    """
    attrs = node.attrs
    body, given, rows = attrs["body"], attrs["given"], attrs["rows"]
    groups = {body: grouped(body)}
    alone = attrs["count"] == attrs["at once"]  # a part is one tile
    operands = Operands(shared, [*given, *(body.results if alone else body.results[:rows])], groups)
    lines = _tile(body, operands, groups, [] if alone else body.results[rows:])
    places = [0]
    for value in body.results[rows:]:
        places.append(places[-1] + aligned(value.type.nbytes))
    room = aligned(places[-1] + aligned(operands.memory.end + 4 * operands.scratch_floats))
    attrs |= {"name": f"part_{number}", "places": places, "room": room}
    area = Type((room * attrs["at once"],), "uint8")
    attrs["parts"] += (Value("part", "room", [node], type=area, data=len(attrs["parts"])),)
    node.type += (area,)
    steps = [v.type.nbytes if moves else 0 for v, moves in zip(given, attrs["moves"], strict=True)]
    steps += [value.type.nbytes for value in body.results[:rows]]
    pointers = [f"given[{i}] + tile * {step}" for i, step in enumerate(steps)]
    packing = _packing(node, len(steps) + (2 if attrs["meet"] else 1), pointers)
    pointers += [f"room + {place}" for place in places[:-1]]
    meeting = ""
    if attrs["meet"]:
        sums = zip(body.results[rows:], places, strict=False)
        meeting = _meeting(attrs["at once"], len(steps), room, [(v.type, at) for v, at in sums])
    return (
        f"static void tile_{number}(void **data, char *memory, bool first) {{\n{lines}\n}}\n"
        f"static void part_{number}(void *context, int64_t part) {{\n"
        "  char *const *given = (char *const *)context;\n"
        f"  char *room = given[{len(steps)}] + part * {room};\n{packing}"
        f"  const int64_t first = part * {attrs['count']} / {attrs['at once']};\n"
        f"  for (int64_t tile = first; "
        f"tile < (part + 1) * {attrs['count']} / {attrs['at once']}; tile++) {{\n"
        f"    void *data[] = {{{', '.join(pointers)}}};\n"
        f"    tile_{number}(data, room + {places[-1]}, tile == first);\n  }}\n"
        f"{meeting}}}\n"
    )


def _packing(node: Value, at: int, pointers: list[str]) -> str:
    """Emits how a thread packs its own weights, once for all parts that it computes.

    Args:
        node: the `Tiles` node.
        at: where the part finds the number of the run.
        pointers: of what a tile is given; those of the packed weights are changed.
    """
    lines, size = list[str](), 0
    for position, packed in node.attrs["packed"].items():
        weight, own = packed.args[0].type, f"packed + {size}"
        kind = C_TYPES[weight.dtype]
        x, y = (f"(({kind} *)({place}))" for place in (f"given[{position}]", own))
        operands = [Operand(x, weight)], [Operand(y, packed.type)]
        WRITERS[packed.op](Call(packed, *operands, lines.append, str, str))
        pointers[position] = own
        size += aligned(packed.type.nbytes)
    if not lines:
        return ""
    packs = "\n".join(f"    {line}" for line in lines)
    return (
        f"  alignas(64) static thread_local char packed[{size}];\n"
        "  static thread_local int64_t run = 0;\n"
        f"  if (run != (int64_t)given[{at}]) {{\n{packs}\n    run = (int64_t)given[{at}];\n  }}\n"
    )


def _meeting(parts: int, given: int, room: int, sums: list[tuple[Type, int]]) -> str:
    """Emits the end of a part, which adds its sums to those of its neighbours that are done."""
    lines = (
        f"    add_tile<{found.size}>(({kind} *)(x + {at}), ({kind} *)(y + {at}), false);\n"
        for found, at in sums
        for kind in (C_TYPES[found.dtype],)
    )
    return (
        f"  meet<{parts}>(part, (int *)given[{given + 1}], [=](int64_t from, int64_t to) {{\n"
        f"    char *x = given[{given}] + from * {room}, *y = given[{given}] + to * {room};\n"
        f"{''.join(lines)}  }});\n"
    )


def _tile(body: Block, operands: Operands, groups: dict, sums: list[Value]) -> str:
    """Emits the lines of one tile, which adds its results to the sums."""
    lines = lines_of(groups[body], operands)
    for position, value in enumerate(sums, len(operands.given)):
        operand = operands.operand(value)
        kind = operand.c_type
        at = f"({kind} *)data[{position}]"
        lines.append(f"add_tile<{operand.size}>({operand.pointer}, {at}, first);")
    scratch = f"enum : int64_t {{ SCRATCH = {operands.memory.end} }};"
    return "\n".join(f"  {line}" for line in [scratch, *operands.pointers(), *lines])
