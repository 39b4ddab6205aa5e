"""C++ operands of values: constants, pointers that are passed in, places in the memory area."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Block, Unsupported
from mindspore_rl.codegen.effects import place_of
from mindspore_rl.codegen.fusion import Group
from mindspore_rl.codegen.memory_plan import lay_out
from mindspore_rl.codegen.ops.elementwise import C_TYPES, literal
from mindspore_rl.codegen.ops.registry import Operand
from mindspore_rl.mindir.graph import Type, Value


@dataclass
class Shared:
    """State that all functions of a unit share.

    Attributes:
        sources: source lines of nodes, by scope.
        declared: C++ declarations of the constants.
        functions: functions of other libraries, `library:name`, with the C++ that calls them.
    """

    sources: dict[str, str]
    declared: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    _constants: dict[Any, str] = field(default_factory=dict)

    def constant(self, array: np.ndarray) -> str:
        """Returns the name of a constant, declaring it if needed; equal constants share one."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"k{len(self._constants)}"
            dtype = array.dtype.name
            numbers = "0"
            if any(array.tobytes()):
                numbers = ", ".join(literal(x, dtype) for x in array.reshape(-1).tolist())
            self.declared.append(
                f"alignas(64) static const {C_TYPES[dtype]} {name}[{max(array.size, 1)}] = "
                f"{{{numbers}}};"
            )
        return self._constants[key]

    def function(self, name: str) -> str:
        """Returns the C++ that calls a function of a library, `library:name`."""
        return self.functions.setdefault(name, f"functions[{len(self.functions)}]")


class Operands:
    """The operands of the blocks of a cell, or of one of its tiles.

    Args:
        shared: the state that the unit's functions share.
        given: values whose pointers are passed to the functions, in order.
        groups: the groups that the blocks' nodes are emitted as.

    Attributes:
        memory: the places of all other values.
        scratch_floats: most float32 numbers of scratch space that a call uses, after that memory.
    """

    def __init__(
        self, shared: Shared, given: Iterable[Value], groups: dict[Block, list[Group]]
    ) -> None:
        self.shared = shared
        self.given = {value: position for position, value in enumerate(given)}
        self.memory = lay_out(groups, self.given)
        self.scratch_floats = 0
        self._names: dict[Value, str] = {}

    def begin(self) -> None:
        """Starts a new function, which has its own names."""
        self._names = {}

    def name(self, root: Value) -> str:
        """Returns the name of the pointer to a value's memory."""
        return self._names.setdefault(root, f"v{len(self._names)}")

    def operand(self, value: Value) -> Operand:
        """Returns a value as a C++ operand."""
        if value.op == "constant":
            array = _array(value)
            return Operand(self.shared.constant(array), Type(array.shape, array.dtype.name))
        root, offset = place_of(value)
        known = root.op == "constant"
        pointer = self.shared.constant(_array(root)) if known else self.name(root)
        found = value.type
        if not isinstance(found, Type):
            raise Unsupported("a tuple where a tensor is expected")
        if found.dtype not in C_TYPES:
            raise Unsupported(f"numbers of type {found.dtype}")
        return Operand(f"({pointer} + {offset})" if offset else pointer, found)

    def outlives(self, node: Value) -> bool:
        """Returns whether an element-wise node's result is read after its loop."""
        return node in self.memory.offsets or node in self.given

    def pointers(self) -> list[str]:
        """Emits the declarations of the function's pointers."""
        return [self._pointer(root, name) for root, name in self._names.items()]

    def _pointer(self, root: Value, name: str) -> str:
        kind = C_TYPES[root.type.dtype]
        if root in self.given:
            return f"{kind} *const {name} = ({kind} *)data[{self.given[root]}];"
        if root not in self.memory.offsets:
            raise AssertionError(f"{root} has no place")
        return f"{kind} *const {name} = ({kind} *)(memory + {self.memory.offsets[root]});"


def _array(value: Value) -> np.ndarray:
    """Returns a constant as an array; floats without a type are float32."""
    if isinstance(value.data, np.ndarray):
        return value.data
    if isinstance(value.data, (bool, int)):
        return np.array(value.data)
    if isinstance(value.data, float):
        return np.array(value.data, np.float32)
    raise Unsupported(f"a constant of {type(value.data).__name__}")
