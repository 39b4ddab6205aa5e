"""MindSpore's compiled graph of a cell as plain objects.

MindSpore exports the graph that it runs, after inlining, differentiation and type inference, in its
exchange format (MindIR). Loops are functions that call each other; tuples, monads (the order of
effects) and reads of parameters are nodes like any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn
from mindspore.train import mind_ir_pb2

_ATTRIBUTE = mind_ir_pb2.AttributeProto
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    17: "float64",
}
_INTEGERS = {
    getattr(_ATTRIBUTE, name)
    for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
}


@dataclass(frozen=True)
class Type:
    """The type of a tensor: its shape and NumPy dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(eq=False)
class Value:
    """A node of the graph.

    Attributes:
        op: the primitive; `call`, whose first argument is the called function; `constant`;
            `argument` of a function; or `weight`, a parameter of the cell.
        name: MindSpore's name, which contains that of the source variable if there is one.
        args: the arguments, values or functions.
        attrs: the primitive's attributes.
        type: a tensor's type; a tuple of types; None for a monad or a function.
        data: a constant's data: an array, a number, a string, None or a tuple of these.
        scope: the cells around it, `Default/actor-PPOActor/...`.
    """

    op: str
    name: str
    args: list[Any] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    type: Any = None
    data: Any = None
    scope: str = ""

    def __repr__(self) -> str:
        return f"<{self.op} {self.name} {self.type or ''}>"

    @property
    def variable(self) -> str:
        """The value's name in the source; empty if MindSpore did not keep it."""
        stem = self.name.rsplit(":", 2)[1] if self.name.count(":") > 1 else self.name
        return stem.split("$", 1)[1] if "$" in stem else ""


@dataclass(eq=False)
class Function:
    """A function: parameters, nodes in an order in which they can run, and a result."""

    name: str
    params: list[Value] = field(default_factory=list)
    nodes: list[Value] = field(default_factory=list)
    result: Any = None


@dataclass(eq=False)
class Program:
    """A compiled cell.

    Attributes:
        main: the function of the cell's inputs.
        functions: all functions, by name.
        weights: the cell's parameters, by name.
    """

    main: Function
    functions: dict[str, Function]
    weights: dict[str, Value]


class Graph(NamedTuple):
    """MindSpore's compiled graph of a cell.

    Attributes:
        data: the graph in MindIR.
        sources: source lines, `file.py:7: text`, by the scoped names of nodes.
    """

    data: bytes
    sources: dict[str, str]


def graph_of(cell: nn.Cell, phase: str) -> bytes:
    """Returns MindSpore's graph of a compiled cell, in MindIR."""
    from mindspore.graph.api import _cell_graph_executor  # noqa: PLC0415  (internal)

    data = _cell_graph_executor._graph_executor.get_func_graph_proto(phase, "mind_ir", False)
    if not data:
        raise RuntimeError(f"MindSpore has no graph of {type(cell).__name__}")
    return data


def read(data: bytes) -> Program:
    """Parses a graph in MindIR."""
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(data)
    primitives = {
        p.name: (p.op_type, {a.name: _constant(a) for a in p.attribute}) for p in model.primitives
    }
    graphs = [model.graph, *model.functions]
    functions = {graph.name: Function(graph.name) for graph in graphs}
    known: dict[str, Value] = {}
    weights: dict[str, Value] = {}
    for graph in graphs:
        function = functions[graph.name]
        for proto in graph.input:
            found = _tensor_type(proto.tensor[0]) if proto.tensor else _type(proto.attr_info)
            known[proto.name] = Value("argument", proto.name, type=found)
            function.params.append(known[proto.name])
        for proto in graph.parameter:
            name = proto.name.split(":", 1)[1]
            weights[name] = known[proto.name] = Value("weight", name, type=_tensor_type(proto))
    linked = [link for graph in graphs for link in _read_nodes(graph, functions, primitives, known)]
    for value, arguments in linked:
        value.args = [functions.get(name) or known[name] for name in arguments]
    for graph in graphs:
        function, name = functions[graph.name], str(graph.output[0].name)
        function.result = functions.get(name) or known[name]
        function.nodes = _ordered(function.nodes, function.result)
    return Program(functions[model.graph.name], functions, weights)


def _read_nodes(
    graph: Any,
    functions: dict[str, Function],
    primitives: dict[str, tuple[str, dict[str, Any]]],
    known: dict[str, Value],
) -> Iterator[tuple[Value, list[str]]]:
    """Yields the nodes of a function with the names of their arguments, which may come later.

    A constant that several functions use is listed in one of them.
    """
    function = functions[graph.name]
    for node in graph.node:
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "Constant":
            data = _constant(attributes["value"])
            value = Value("constant", node.name, data=data)
            if isinstance(data, np.ndarray):
                value.type = Type(data.shape, data.dtype.name)
            before = known.setdefault(node.name, value)
            if not _same(before.data, data):
                raise ValueError(f"two constants are named {node.name}")
            continue
        target = node.op_type.removeprefix("REF::")
        op, attrs = primitives.get(target, ("call", {}))
        value = Value(op, node.name, attrs=attrs, scope=node.domain)
        value.type = _type(attributes["shape"]) if "shape" in attributes else None
        known[node.name] = value
        function.nodes.append(value)
        arguments = [target, *node.input] if op == "call" else list(node.input)
        yield value, arguments


def _ordered(nodes: list[Value], result: Any) -> list[Value]:
    """Sorts nodes topologically, including nodes that only have effects."""
    inside, done, order = set(nodes), set(), []
    for root in [*nodes, result]:
        stack = [(root, False)]
        while stack:
            value, ready = stack.pop()
            if not isinstance(value, Value) or value not in inside or value in done:
                continue
            if ready:
                done.add(value)
                order.append(value)
            else:
                stack.append((value, True))
                stack += [(arg, False) for arg in reversed(value.args)]
    return order


def _constant(attribute: Any) -> Any:
    """Returns the value of an attribute; numbers inside tuples are in the plural fields."""
    kind = attribute.type
    if kind == _ATTRIBUTE.TENSORS:
        tensor = attribute.tensors[0]
        found, shape = _DTYPES[tensor.data_type], tuple(tensor.dims)
        if not tensor.raw_data:
            return np.zeros(shape, found)
        return np.frombuffer(tensor.raw_data, found).reshape(shape)
    if kind in (_ATTRIBUTE.TUPLE, _ATTRIBUTE.LIST):
        return tuple(_constant(part) for part in attribute.values)
    if kind in _INTEGERS:
        return int(attribute.ints[0] if attribute.ints else attribute.i)
    if kind == _ATTRIBUTE.BOOL:
        return bool(attribute.ints[0] if attribute.ints else attribute.i)
    if kind == _ATTRIBUTE.FLOAT:
        return float(np.float32(attribute.floats[0] if attribute.floats else attribute.f))
    if kind == _ATTRIBUTE.DOUBLE:
        return float(attribute.doubles[0] if attribute.doubles else attribute.d)
    if kind == _ATTRIBUTE.STRING:
        return attribute.s.decode()
    return None


def _type(attribute: Any) -> Any:
    if attribute.type == _ATTRIBUTE.TENSORS:
        return _tensor_type(attribute.tensors[0])
    if attribute.type in (_ATTRIBUTE.TUPLE, _ATTRIBUTE.LIST):
        return tuple(_type(part) for part in attribute.values)
    return None


def _tensor_type(proto: Any) -> Type:
    return Type(tuple(proto.dims), _DTYPES[proto.data_type])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    alike = type(one) is type(other) and np.shape(one) == np.shape(other)
    return alike and np.asarray(one).tobytes() == np.asarray(other).tobytes()  # nan is nan
