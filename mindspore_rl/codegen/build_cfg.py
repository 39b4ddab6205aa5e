"""Builds the control-flow graph of a cell from functions that call each other.

MindSpore writes a loop as functions: one tests the condition and calls the body or the rest, and
the body calls the test again. Here every function becomes a block for each place that it returns
to, without tuples and monads. After `simplify`, plain loops and branches over tensors remain.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Block, Blocks, Jump, Unsupported, give_parts, leaves
from mindspore_rl.codegen.simplify import drop_dead, key_of, merge, reached, resolve_params
from mindspore_rl.mindir.graph import Function, Program, Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES

TAKEN_APART = {op for op, primitive in PRIMITIVES.items() if primitive.view == "parts"}
"""Primitives whose results are unchanged parts of their argument."""
MAX_BLOCKS = 2000


@dataclass(frozen=True, eq=False)
class _Closure:
    """A function with its first arguments bound, or one of two closures by a condition."""

    function: Function | None
    args: tuple
    condition: Value | None = None
    sides: tuple = ()


def blocks_of(program: Program) -> Blocks:
    """Builds the blocks of a program.

    Raises:
        Unsupported: functions are used as values other than in loops and branches.
    """
    builder = _Builder()
    given = tuple(_spread(param) for param in program.main.params)
    inputs = leaves(given)
    first = builder.block(program.main, given, None)
    known = dict(zip(leaves(builder.arguments[first]), inputs, strict=True))
    first.params = []
    made = (block for block, _ in builder.made.values())
    resolve_params(reached(*made), builder.incoming, known)
    blocks = reached(first)
    drop_dead(blocks)
    merge(blocks)
    return Blocks(reached(first), inputs, program.weights, builder.structure)


def _spread(param: Value) -> Any:
    """Returns the tensors of an input: itself, a nested tuple of them, or None for a monad."""
    if not isinstance(param.type, tuple):
        return None if param.type is None else param
    parts = [
        Value("argument", f"{param.name}.{index}", type=found)
        for index, found in enumerate(param.type)
    ]
    return tuple(map(_spread, parts))


class _Builder:
    """Makes a block for every function and each place that it returns to."""

    def __init__(self) -> None:
        self.made: dict[Any, tuple[Block, Any]] = {}
        self.arguments: dict[Block, tuple] = {}
        self.incoming: dict[Value, list[Value]] = {}
        self.structure: Any = None

    def block(self, function: Function, args: tuple, back: tuple[Block, Any] | None) -> Block:
        """Returns the block of a function that returns to `back`; makes it at its first call."""
        key = (function, back and back[0])
        if key not in self.made:
            if len(self.made) > MAX_BLOCKS:
                raise Unsupported("a function that calls itself other than as a loop")
            block = Block(f"b{len(self.made)}")
            params = tuple(self._param(block, arg) for arg in args)
            self.made[key] = block, params
            self.arguments[block] = params
            self._fill(block, function, params, back)
        return self.made[key][0]

    def _param(self, block: Block, arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(self._param(block, part) for part in arg)
        if isinstance(arg, _Closure):
            raise Unsupported("a function that is passed to a function")
        if arg is None or (arg.type is None and arg.data is None):
            return None  # a monad
        if arg.type is None:
            return arg  # a constant number
        value = Value("param", f"{block.name}.{len(block.params)}", type=arg.type)
        block.params.append(value)
        return value

    def _fill(self, block: Block, function: Function, params: tuple, back: Any) -> None:
        known: dict[Any, Any] = dict(zip(function.params, params, strict=True))
        known[function] = _Closure(function, ())
        last = _tail_call(function)

        def get(arg: Any) -> Any:
            if isinstance(arg, Function):
                return _Closure(arg, ())
            if arg.op == "constant":
                return _constant(arg)
            if arg.op == "weight":
                return arg
            if arg not in known:
                raise Unsupported(f"{arg.op} of another function")
            return known[arg]

        for node in function.nodes:
            if node is last:
                known[node] = None  # only the order of effects refers to it
                continue
            args = [get(arg) for arg in node.args]
            if node.op == "call":
                after = Block(f"{block.name}_")
                result = self._results(after, node.type)
                self._call(block, args, (after, result))
                known[node], block = result, after
            else:
                known[node] = _structural(node, args) or self._node(block, node, args)
        if last is not None:
            self._call(block, [get(arg) for arg in last.args], back)
        elif back is None:
            result = _returned(get(function.result))
            block.results = leaves(result)
            self.structure = _positions(result, iter(range(len(block.results))))
        else:
            self._jump_back(block, get(function.result), back)

    def _node(self, block: Block, node: Value, args: list[Any]) -> Any:
        if node.op in ("UpdateState", "Depend"):
            return None
        copy = Value(node.op, node.name, args, dict(node.attrs), node.type, None, node.scope)
        if node.op in TAKEN_APART:
            given = args[0] if isinstance(args[0], tuple) else args[:1] * len(node.type)
            parts = tuple(
                Value("Taken", f"{node.name}.{i}", [arg], {"of": copy, "index": i}, found)
                for i, (arg, found) in enumerate(zip(given, node.type, strict=True))
            )
            block.nodes += parts
            return parts
        block.nodes.append(copy)
        if isinstance(node.type, tuple):
            give_parts(copy, node.type, [f"{node.name}.{i}" for i in range(len(node.type))])
            return copy.attrs["parts"]
        return copy

    def _results(self, block: Block, found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple(self._results(block, part) for part in found)
        return None if found is None else self._param(block, Value("argument", "", type=found))

    def _jump_back(self, block: Block, result: Any, back: tuple[Block, Any]) -> None:
        target, params = back
        block.jumps.append(self._jump(target, params, result))

    def _call(self, block: Block, args: list[Any], back: Any) -> None:
        """Ends a block with the jumps of a call."""
        called, rest = args[0], tuple(args[1:])
        if not isinstance(called, _Closure):
            raise Unsupported("a call of what is no function")
        if called.condition is not None:
            block.condition = called.condition
            sides = called.sides
        else:
            sides = (called,)
        for side in sides:
            if not isinstance(side, _Closure) or side.function is None:
                raise Unsupported("a call of what is no function")
            given = (*side.args, *rest)
            target = self.block(side.function, given, back)
            block.jumps.append(self._jump(target, self.arguments[target], given))

    def _jump(self, target: Block, params: Any, given: Any) -> Jump:
        jump = Jump(target, [])
        self._pair(jump, params, given)
        return jump

    def _pair(self, jump: Jump, param: Any, given: Any) -> None:
        if isinstance(param, tuple):
            if not isinstance(given, tuple) or len(given) != len(param):
                raise Unsupported("tuples of different lengths meet")
            for one, other in zip(param, given, strict=True):
                self._pair(jump, one, other)
        elif param is not None and param.op == "param":
            jump.args.append(given)
            self.incoming.setdefault(param, []).append(given)
        elif param is not None and key_of(param) != key_of(given):
            raise Unsupported("a number that changes in a loop")


def _returned(value: Any) -> Any:
    """Returns a result with its Python numbers as constant tensors."""
    if isinstance(value, tuple):
        return tuple(_returned(part) for part in value)
    if value is None or value.type is not None or value.op != "constant":
        return value
    if isinstance(value.data, tuple):
        parts = [Value("constant", f"{value.name}.{i}", data=d) for i, d in enumerate(value.data)]
        return tuple(_returned(part) for part in parts)
    if not isinstance(value.data, bool | int | float):
        raise Unsupported(f"a result that is no number, {value.data!r}")
    data = np.asarray(value.data)
    return Value("constant", value.name, type=Type((), data.dtype.name), data=data)


def _positions(value: Any, numbers: Iterator[int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_positions(part, numbers) for part in value)
    return next(numbers)


def _tail_call(function: Function) -> Value | None:
    """Returns the call that a function ends with, if nothing else comes after it; else None."""
    value = function.result
    while isinstance(value, Value) and value.op == "Depend":
        value = value.args[0]
    if not isinstance(value, Value) or value.op != "call":
        return None
    after = {value}
    for node in function.nodes:
        if after & {arg for arg in node.args if isinstance(arg, Value)}:
            if node.op not in ("UpdateState", "Depend"):
                return None
            after.add(node)
    return value


def _structural(node: Value, args: list[Any]) -> Any:
    """Evaluates nodes that compute nothing (tuples, functions, order of effects); else None."""
    if node.op in ("MakeTuple", "MakeList"):
        return tuple(args)
    if node.op in ("TupleGetItem", "ListGetItem") and isinstance(args[0], tuple):
        return args[0][int(args[1].data)]
    if node.op == "Depend":
        return args[0]
    if node.op == "Partial":
        return _Closure(args[0].function, (*args[0].args, *args[1:]))
    if node.op == "Switch":
        return _Closure(None, (), args[0], (args[1], args[2]))
    return None


def _constant(value: Value) -> Any:
    """Splits a constant tuple of tensors; keeps other tuples (shapes, axes) as one constant."""
    if isinstance(value.data, tuple) and any(isinstance(d, np.ndarray) for d in value.data):
        return tuple(
            _constant(Value("constant", f"{value.name}.{index}", type=_type_of(part), data=part))
            for index, part in enumerate(value.data)
        )
    return value


def _type_of(data: Any) -> Type | None:
    return Type(data.shape, data.dtype.name) if isinstance(data, np.ndarray) else None
