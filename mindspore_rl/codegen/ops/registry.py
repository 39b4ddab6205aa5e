"""Registers kernels, and gives them their context."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.codegen.ops.elementwise import C_TYPES
from mindspore_rl.codegen.ops.views import axis_of, constant, extent_of, option, strides_of
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.platform import toolchain


@dataclass(frozen=True)
class Operand:
    """A tensor in C++: an expression that points to its first element, and its type."""

    pointer: str
    type: Type

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.type.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    @property
    def c_type(self) -> str:
        """The C++ type of an element."""
        return C_TYPES[self.type.dtype]

    def split(self, axis: int, count: int = 1) -> tuple[int, int, int]:
        """Returns the products of the extents before, of and after `count` axes from `axis` on."""
        axis %= max(len(self.shape), 1)
        before, after = self.shape[:axis], self.shape[axis + count :]
        return extent_of(before), extent_of(self.shape[axis : axis + count]), extent_of(after)


@dataclass(frozen=True)
class Call:
    """A primitive to be emitted as C++.

    Attributes:
        node: the primitive's node.
        args: an operand for a tensor, a list of them for a tuple, None for anything else.
        outs: the operands of the results.
        line: adds a line of C++.
        scratch: returns a pointer to a number of floats of scratch space.
        function: returns a pointer to a function of a library, `path:name`.
    """

    node: Value
    args: list[Any]
    outs: list[Operand]
    line: Callable[[str], None]
    scratch: Callable[[int], str]
    function: Callable[[str], str]

    @property
    def out(self) -> Operand:
        """The only result."""
        return self.outs[0]

    def number(self, index: int, default: Any = None) -> Any:
        """Returns a constant argument, see `constant`."""
        return constant(self.node, index, default)

    def option(self, name: str, index: int, default: Any = None) -> Any:
        """Returns an attribute, or the argument that replaces it in other versions."""
        return option(self.node, name, index, default)

    def axis(self) -> Any:
        """Returns the axis or axes, see `axis_of`."""
        return axis_of(self.node)

    def run(self, function: str, template: Any, *args: Any) -> None:
        """Emits a call of a function in kernels.h."""
        chosen = ", ".join(str(t).lower() if isinstance(t, bool) else str(t) for t in template)
        given = ", ".join(a.pointer if isinstance(a, Operand) else str(a) for a in args)
        self.line(f"{function}<{chosen}>({given});")

    @property
    def parts(self) -> int:
        """Number of parts in which threads compute it, see `tiling`."""
        found: int = self.node.attrs.get("in parts", 1)
        return found

    def in_parts(self, *lines: str) -> None:
        """Emits lines that compute part number `part`, if there are several parts."""
        for line in in_parts(list(lines), self.parts, self.function):
            self.line(line)

    def each(self, number: str) -> None:
        """Emits a loop that sets every element `i` of the result to an expression."""
        out = self.out
        self.line(f"for (int64_t i = 0; i < {out.size}; i++) {out.pointer}[i] = {number};")

    def copy(self, x: Operand) -> None:
        """Emits a copy of an operand into the result."""
        self.line(f"memcpy({self.out.pointer}, {x.pointer}, {x.size} * sizeof(*{x.pointer}));")

    def unsupported(self) -> Unsupported:
        """Makes the error for arguments that the rule does not support."""
        return Unsupported(f"{self.node.op} with these arguments")


def span(variable: str, extent: int, parts: int = 1) -> str:
    """Returns the head of a loop over an extent, or over part number `part` of it."""
    start, end = "0", f"{extent}"
    if parts > 1:
        start, end = f"part * {extent} / {parts}", f"(part + 1) * {extent} / {parts}"
    return f"for (int64_t {variable} = {start}; {variable} < {end}; {variable}++)"


def in_parts(lines: list[str], parts: int, function: Callable[[str], str]) -> list[str]:
    """Makes lines that compute part number `part` compute all parts, on several threads.

    Args:
        lines: C++.
        parts: their number; 1: the lines are returned as they are.
        function: see `Call`.
    """
    if parts < 2:
        return lines
    threads = function(f"{toolchain.threads()}:in_parts")
    return [f"run_parts((void *){threads}, {parts}, [=](int64_t part) {{", *lines, "});"]


def loops(shape: tuple[int, ...]) -> tuple[str, list[str]]:
    """Returns the heads of loops over an array's elements, and the loop variables."""
    variables = [f"i{axis}" for axis in range(len(shape))]
    heads = (
        f"for (int64_t {i} = 0; {i} < {extent}; {i}++) "
        for i, extent in zip(variables, shape, strict=True)
    )
    return "".join(heads), variables


def place(variables: list[str], strides: list[int]) -> str:
    """Returns the offset of the loops' current element in an array."""
    terms = (f"{i} * {stride}" for i, stride in zip(variables, strides, strict=True) if stride)
    return " + ".join(terms) or "0"


def room_for(call: Call, like: Operand, axes: tuple[int, ...]) -> Operand:
    """Returns scratch space for an operand with its axes in another order."""
    found = Type(tuple(like.shape[axis] for axis in axes), like.type.dtype)
    return Operand(f"(({like.c_type} *){call.scratch(-(-found.nbytes // 4))})", found)


def transposed(call: Call, x: Operand, axes: tuple[int, ...]) -> Operand:
    """Emits a copy of an operand with its axes in another order, in scratch space."""
    y = room_for(call, x, axes)
    strides = [strides_of(x.shape)[axis] for axis in axes]
    head, variables = loops(y.shape)
    call.line(f"{{ {y.c_type} *at = {y.pointer}; {head}")
    call.line(f"  *at++ = {x.pointer}[{place(variables, strides)}]; }}")
    return y


class Table(dict[str, Callable[[Call], None]]):
    """Kernels by name, see `Primitive.kernel`: functions that emit the C++ of a call."""

    def row(self, name: str) -> Callable:
        """Returns a decorator that registers a function as a kernel."""

        def add(function: Callable[[Call], None]) -> Callable[[Call], None]:
            self[name] = function
            return function

        return add
