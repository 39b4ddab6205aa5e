"""Makes MindSpore's parser take what users write and it does not compile.

In the functions of a program, `parameter.set_data(x)` becomes an assignment, an `nn.CellList` may
list its parameters, `reversed` and functions of `functools` and `itertools` take arrays (see
`python_in_graphs`), `self(x)` becomes a call of `self.construct`, `max(a, b)` and `min(a, b)` of an
array of one number and a number work, an `if` on an array may only assign, and its sides may be an
array and a real number. `np.log(2.0) * x` is MindSpore's array everywhere, with its gradient. A
`functools.partial` that an attribute holds is a function, a `lambda` may stand in any expression, a
`match` of constants is an `if`, `zip` may be strict, and a generator makes a tuple. A function
may use the module's value of its own name, and a slice of an `nn.CellList` is a tuple.

The parser takes a fifth of its time: it reads each function once, and without asttokens.
"""

import ast
import enum
import functools
import inspect
import linecache
import operator
import os
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.graph import _parse as parse
from mindspore.graph._parse import parser, resources, standard_method
from mindspore.ops.composite import multitype_ops

from mindspore_rl.errors import ProgramError
from mindspore_rl.platform import one_type, python_in_graphs, refused_python
from mindspore_rl.platform.python_in_graphs import OF_ARRAYS
from mindspore_rl.platform.syntax import Matches, own_nodes

SETS, LISTED = "set_data_by_msrl", "parameters_by_msrl"
CHAIN, MERGED, REDUCTIONS = "chain_by_msrl", "merged_by_msrl", "reductions_by_msrl"
CHANGING = parser.parse_expr_statement_white_list
LISTING = ("get_parameters", "trainable_params")
BINARY = {
    **{np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul},
    **{np.divide: operator.truediv, np.power: operator.pow, np.floor_divide: operator.floordiv},
    **{np.less: operator.lt, np.less_equal: operator.le, np.equal: operator.eq},
    **{np.greater: operator.gt, np.greater_equal: operator.ge, np.not_equal: operator.ne},
}
"""Functions of NumPy, and what they are of its number and an array of MindSpore."""


def set_data(owner: Any, value: Any) -> Any:
    """Computes `owner.set_data(value)`; a Parameter keeps its memory."""
    return ops.assign(owner, value) if isinstance(owner, Tensor) else owner.set_data(value)


def parameters(owner: Any, method: str, share: str) -> Any:
    """Computes `owner.METHOD()`; MindSpore makes a tuple of an `nn.CellList`.

    Args:
        owner: a cell, or a tuple of cells.
        method: a method that lists parameters.
        share: the attribute that has the part of a cell in a list, see `rl.parameters.SHARES`.
    """
    if not isinstance(owner, tuple):
        return getattr(owner, method)()
    found: tuple = ()
    for cell in owner:
        found = found + getattr(cell, share)
    return found


def extreme(name: str, value: Any, other: Any) -> Any:
    """Computes `max(value, other)` or `min(value, other)`, as Python does also of NaN."""
    return ops.where(other > value if name == "max" else other < value, other, value)


def _max(*values: Any) -> Any:
    one = len(values) == 2 and _is_one(*values)
    return extreme("max", *values) if one else standard_method.ms_max(*values)


def _min(*values: Any) -> Any:
    one = len(values) == 2 and _is_one(*values)
    return extreme("min", *values) if one else standard_method.ms_min(*values)


def _is_one(value: Any, other: Any) -> bool:
    """Returns whether of two values one is an array of one number, and the other a number."""
    if isinstance(value, Tensor):
        return isinstance(other, (int, float)) and value.size == 1
    return isinstance(value, (int, float)) and isinstance(other, Tensor) and other.size == 1


def _array_ufunc(_: Tensor, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
    """Computes NumPy's functions of MindSpore's arrays: as NumPy does, but for its numbers."""
    number = isinstance(inputs[0], (np.generic, np.ndarray)) and inputs[0].ndim == 0
    if ufunc in BINARY and method == "__call__" and number and not named:
        return BINARY[ufunc](inputs[0].item(), inputs[1])
    arrays = (one.asnumpy() if isinstance(one, Tensor) else one for one in inputs)
    return getattr(ufunc, method)(*arrays, **named)


class _Forms(Matches):
    """Changes a function's syntax tree.

    Args:
        reader: MindSpore's parser of the function.
    """

    def __init__(self, reader: Any) -> None:
        self._reader, function = reader, reader.fn
        code = function.__code__
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        self._globals = {k: v for k, v in function.__globals__.items() if k not in own}

    def _value(self, node: ast.expr) -> Any:
        """Returns what a global name, or a path from one, stands for; None if it is neither."""
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        return self._globals.get(node.id) if isinstance(node, ast.Name) else None

    def _fail(self, node: Any, text: str) -> NoReturn:
        line = self._reader.line_offset + node.lineno - 1
        raise ProgramError(f"{os.path.normpath(self._reader.filename)}:{line}: {text}")

    def visit(self, node: ast.AST) -> Any:
        """Refuses what MindSpore does not compile; its messages lack the line."""
        if instead := refused_python.instead_of(node):
            self._fail(node, f"MindSpore compiles no {instead}")
        return super().visit(node)

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:  # noqa: N802, D102
        return _at(ast.Pass(), node)  # of names alone, others are refused

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802, D102
        for inner, name in refused_python.changed_later(function):
            what = f"this function reads `{name}`, which changes before it is called"
            self._fail(inner, f"{what}; MindSpore takes what it was here: make it an argument")
        self.generic_visit(function)
        _yield_at_once(function)
        inside = list(own_nodes(function))
        returns = [node for node in inside if isinstance(node, ast.Return)]
        # MindSpore fails in its back end where a branch on an array ends without a value.
        if any(isinstance(node, ast.If) for node in inside) and all(map(_without_value, returns)):
            last = ast.copy_location(ast.Return(), function.body[-1])
            function.body.append(last)
            for node in (*returns, last):
                node.value = ast.copy_location(ast.Constant(0), node)
        one_type.give(function)
        return function

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:  # noqa: N802, D102
        self.generic_visit(node)
        return one_type.sides(node)

    def visit_Call(self, call: ast.Call) -> ast.Call:  # noqa: N802, D102
        self.generic_visit(call)
        match call:
            case ast.Call(ast.Attribute(owner, "set_data"), [_], []):
                call.func = ast.copy_location(ast.Name(SETS, ast.Load()), call.func)
                call.args.insert(0, owner)
            case ast.Call(ast.Attribute(owner, method), [], []) if method in LISTING:
                names = (ast.Constant(method), ast.Constant(f"{method}_share"))
                call.func, call.args = ast.Name(LISTED, ast.Load()), [owner, *names]
                ast.fix_missing_locations(call)
            case ast.Call(ast.Name("zip"), _, [ast.keyword("strict")]):
                call.keywords = []  # where lengths differ, Python's loop has failed
            case ast.Call(ast.Name("dict"), pairs, named):
                keys: list = [one.arg and ast.Constant(one.arg) for one in named]
                made = self.visit_Dict(_at(ast.Dict(keys, [one.value for one in named]), call))
                return _called(MERGED, call, *pairs, made)
            case ast.Call(ast.Name("self")):
                construct = ast.Attribute(call.func, "construct", ast.Load())
                call.func = ast.copy_location(construct, call.func)
            case ast.Call(ast.Attribute(owner, method), [], []) if method in OF_ARRAYS:
                return _called(f"{method}_by_msrl", call, owner)
            case ast.Call(ast.Attribute(several, "from_iterable"), [values], []):
                call.func, call.args = several, [_at(ast.Starred(values, ast.Load()), values)]
            case ast.Call(ast.Attribute(owner, ("max" | "min") as method), [_, *_], []):
                if not isinstance(self._value(owner), ModuleType):
                    return _called(REDUCTIONS, call, owner, ast.Constant(method), *call.args)
        return call

    def visit_Dict(self, node: ast.Dict) -> ast.expr:  # noqa: N802, D102
        """Merges the dictionaries in one, `{**a, "key": b}`."""
        self.generic_visit(node)
        if None not in node.keys:
            return node
        parts = zip(node.keys, node.values, strict=True)
        several = [
            value if key is None else _at(ast.Dict([key], [value]), node) for key, value in parts
        ]
        return _called(MERGED, node, *several)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:  # noqa: N802, D102
        """Makes a dictionary of the pairs of a comprehension with several `for`."""
        if len(node.generators) == 1:
            return self.generic_visit(node)
        pair = _at(ast.Tuple([node.key, node.value], ast.Load()), node)
        return _called(MERGED, node, self.visit(_at(ast.ListComp(pair, node.generators), node)))

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:  # noqa: N802, D102
        """Compares a member of an `Enum` for equality: it is equal to nothing else."""
        self.generic_visit(node)
        last, asks = node.comparators[-1], isinstance(node.ops[-1], (ast.In, ast.NotIn))
        if asks and isinstance(last, ast.Set):
            node.comparators[-1] = _at(ast.Tuple(last.elts, ast.Load()), last)
        if len(node.ops) == 1 and isinstance(self._value(node.comparators[0]), enum.Enum):
            same = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}
            node.ops = [same.get(type(one), type(one))() for one in node.ops]
        for kind, other in zip(node.ops, node.comparators, strict=True):
            unknown = not isinstance(other, ast.Constant) and self._value(other) is None
            if unknown and isinstance(kind, (ast.Is, ast.IsNot)):
                what = f"`{ast.unparse(node)}` may compare objects, which MindSpore cannot"
                self._fail(node, f"{what}: compare their numbers or names, with ==")
        return node

    def visit_ListComp(self, node: Any) -> Any:  # noqa: N802, D102
        """Makes a chain of lists of a comprehension with several `for`."""
        self.generic_visit(node)
        first, *others = node.generators
        if not others:
            return node
        inner = self.visit(_at(ast.ListComp(node.elt, others), node))
        lists = _at(ast.ListComp(inner, [first]), node)
        chained = _called(CHAIN, node, _at(ast.Starred(lists, ast.Load()), node))
        return chained if isinstance(node, ast.GeneratorExp) else _called("list", node, chained)

    visit_GeneratorExp = visit_ListComp  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:  # noqa: N802, D102
        """Calls `x.update(y)` of an object; MindSpore computes `x = x.update(y)`, for its lists."""
        self.generic_visit(node)
        match node.value:
            case ast.Call(ast.Attribute(ast.Name(name) as owner, method)) if method in CHANGING:
                new, unused = ast.Name(name, ast.Store()), ast.Name("unused_by_msrl", ast.Store())
                kinds = _at(ast.parse("(list, dict)", mode="eval").body, node)
                here = _at(ast.Assign([new], node.value), node)
                there = _at(ast.Assign([unused], node.value), node)
                return _at(ast.If(_called("isinstance", node, owner, kinds), [here], [there]), node)
        return node


def _yield_at_once(function: ast.FunctionDef) -> None:
    """Makes a function of a generator whose `yield`s are statements: it returns a tuple of all."""
    nodes = list(own_nodes(function))
    made = [one for one in nodes if isinstance(one, ast.Expr) and isinstance(one.value, ast.Yield)]
    others = (ast.Yield, ast.YieldFrom, ast.Return)
    if not made or sum(isinstance(one, others) for one in nodes) > len(made):
        return
    name = "yielded_by_msrl"
    for one in made:
        value = one.value.value or ast.Constant(None)  # type: ignore[attr-defined]
        append = ast.Attribute(ast.Name(name, ast.Load()), "append", ast.Load())
        one.value = ast.copy_location(ast.Call(append, [value], []), one.value)
        ast.fix_missing_locations(one)
    first = ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load()))
    last = ast.Return(ast.Call(ast.Name("tuple", ast.Load()), [ast.Name(name, ast.Load())], []))
    function.body.insert(0, ast.copy_location(first, function.body[0]))
    function.body.append(ast.copy_location(last, function.body[-1]))
    ast.fix_missing_locations(function)


def _without_value(node: ast.Return) -> bool:
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def _at(node: Any, like: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(node, like))


def _called(name: str, like: ast.AST, *args: ast.expr) -> ast.Call:
    return _at(ast.Call(ast.Name(name, ast.Load()), list(args), []), like)


class _Placed(parser.asttokens.ASTText):
    """A syntax tree whose nodes have their places, which MindSpore reads from asttokens' tokens."""

    def __init__(self, source: str, parse: bool = True, tree: ast.Module | None = None) -> None:
        super().__init__(source, tree or ast.parse(source))
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.stmt, ast.expr, ast.arg, ast.keyword)):
                start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
                vars(node).update(
                    first_token=SimpleNamespace(start=start), last_token=SimpleNamespace(end=end)
                )


_parse = parser.Parser.parse


class _OwnName(ast.NodeTransformer):
    """Gives the module's value of a function's own name another name in the function."""

    def __init__(self, name: str, other: str) -> None:
        self.name, self.other = name, other

    def visit_Name(self, node: ast.Name) -> ast.Name:  # noqa: N802, D102
        node.id = self.other if node.id == self.name else node.id
        return node


def _other_of_name(function: Any) -> dict[str, Any]:
    """Returns the module's value of a function's own name, by its other name; empty if none."""
    name, values = function.__code__.co_name, function.__globals__
    local = name in (*function.__code__.co_varnames, *function.__code__.co_cellvars)
    if local or inspect.unwrap(values.get(name, function)) is function:
        return {}
    return {f"{name}_of_module_by_msrl": values[name]}


def _parse_forms(self: Any) -> Any:
    users = self.fn.__module__.partition(".")[0] not in ("mindspore", "mindspore_rl")
    others = _other_of_name(self.fn) if users else {}
    if users:
        ours = {SETS: set_data, one_type.AS_ARRAY: one_type.as_array, LISTED: parameters}
        ours |= {CHAIN: python_in_graphs.chain, MERGED: python_in_graphs.merged}
        ours[REDUCTIONS] = python_in_graphs.reductions
        ours |= {f"{method}_by_msrl": function for method, function in OF_ARRAYS.items()}
        self.global_namespace.dicts[0].update(ours | others)  # as MindSpore adds its own
    code, known = self.fn.__code__, parser.Parser.ast_cache
    if id(code) not in known:
        alone = _lambda_of(code) if users else None
        parsed = _parse(self) if alone is None else _parsed(self, alone)
        if users:
            _Forms(self).visit(parsed[1])
            for other in others:
                _OwnName(code.co_name, other).visit(parsed[1])
        # With the code itself, so that its number remains its own.
        known[id(code)] = code, parsed, self.lines, self.line_offset, self.col_offset
    _, parsed, self.lines, self.line_offset, self.col_offset = known[id(code)]
    return parsed


def _lambda_of(code: Any) -> ast.FunctionDef | None:
    """Returns the function that a `lambda` with this code is, with its places in the file.

    None for a `def`, and if several stand in its first line and Python does not tell which it is.
    """
    if code.co_name != "<lambda>":
        return None
    lines = linecache.getlines(code.co_filename)
    every = [one for one in ast.walk(ast.parse("".join(lines))) if isinstance(one, ast.Lambda)]
    found = [one for one in every if one.lineno == code.co_firstlineno]
    if len(found) > 1 and hasattr(code, "co_positions"):
        places = set(code.co_positions())
        found = [one for one in found if _place(one.body) in places]
    if len(found) != 1:
        return None
    result = ast.copy_location(ast.Return(found[0].body), found[0].body)
    made = ast.FunctionDef("function_of_lambda", found[0].args, [result], [])
    return ast.copy_location(made, found[0])


def _place(node: ast.expr) -> tuple:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _parsed(reader: Any, function: ast.FunctionDef) -> tuple[Any, ast.Module]:
    """Returns what MindSpore's parser gives of a function's source, of a function in a tree."""
    reader.lines, reader.line_offset = linecache.getlines(reader.fn.__code__.co_filename), 1
    reader.col_offset = 0
    placed = _Placed("", tree=ast.Module([function], []))
    return placed, placed.tree


_super = parser.Parser.analyze_super


def _super_of_function(self: Any, named: Any, instance: Any) -> Any:
    """Computes `super()` as Python does; MindSpore takes the object's class for the function's."""
    if named is None and "__class__" in self.closure_namespace:
        return super(self.closure_namespace["__class__"], instance)
    return _super(self, named, instance)


_resolve, _of_partials = parse.resolve_symbol, dict[int, tuple[Any, Any]]()
_of_classes = dict[MethodType, functools.partial]()


def _resolve_partial(namespace: Any, symbol: str) -> Any:
    """Resolves a name as MindSpore does; a partial, and a method of a class, as a function."""
    found = _resolve(namespace, symbol)
    if isinstance(found, MethodType) and isinstance(found.__self__, type):  # a `classmethod`
        found = _of_classes.setdefault(found, functools.partial(found.__func__, found.__self__))
    if not isinstance(found, functools.partial):
        return found
    if id(found) not in _of_partials:  # with the partial, so that its number remains its own
        function, args, keywords = found.func, found.args, found.keywords

        def call(*given: Any, **named: Any) -> Any:
            return function(*args, *given, **keywords, **named)

        _of_partials[id(found)] = found, call
    return _of_partials[id(found)][1]


_cell_of_list = nn.CellList.__getitem__


def _cells_of_list(self: nn.CellList, index: Any) -> Any:
    """Returns a cell of a list; of a slice a tuple, where MindSpore would rename parameters."""
    cells = list(self)
    return tuple(cells[index]) if isinstance(index, slice) else _cell_of_list(self, index)


def take_forms() -> None:
    """Lets this process's MindSpore take them."""
    Tensor.__array_ufunc__ = _array_ufunc
    nn.CellList.__getitem__ = _cells_of_list
    parser.Parser.parse = _parse_forms
    parser.Parser.analyze_super = _super_of_function
    parse.resolve_symbol = _resolve_partial
    parser.asttokens = SimpleNamespace(ASTTokens=_Placed)
    parse.check_event_record_wait = lambda _: None  # which takes `x.record(y)` for an Event's
    multitype_ops.bitwise_or.register("Dictionary", "Dictionary")(python_in_graphs.union)
    multitype_ops.pow_.register("Number", "Number")(python_in_graphs.power)
    multitype_ops.mod.register("Number", "Number")(python_in_graphs.rest)
    parser._unsupported_python_builtin_type = (set, dict, slice, complex, type)
    resources.convert_object_map |= {max: _max, min: _min, **python_in_graphs.GIVEN}
