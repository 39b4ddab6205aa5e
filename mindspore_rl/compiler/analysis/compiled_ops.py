"""Compiles operations with MindSpore to find those that fail, draw numbers or mix rows.

All operations of a program are compiled together, once, by MindSpore's front end alone. The graph
proves what a trial on data can only make likely.
"""

import linecache
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor

from mindspore_rl.compiler.analysis.row_dataflow import (
    Dependence,
    changed_in_place,
    has_loop,
    needs,
    random_primitive,
)
from mindspore_rl.compiler.analysis.row_lattice import REPLICATED, Sharding
from mindspore_rl.compiler.frontend.rewrite import OWNERS, owned
from mindspore_rl.compiler.ir.ir import Expr, Op, Program
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.errors import ProgramError
from mindspore_rl.mindir import graph as compiled
from mindspore_rl.plan.value import Value
from mindspore_rl.platform import mindspore_device
from mindspore_rl.platform.cache import temporary_folder
from mindspore_rl.platform.user_modules import passing_module
from mindspore_rl.rl.operators import leaves

SOURCE = "msrl_operations.py"
LONG_NODES = 500
"""Nodes of an operation's graph above which an uncompiled evaluation takes tenths of a second."""
EXPECTED = (
    "  what a loop computes is compiled by MindSpore: expected its operators on tensors, no NumPy "
    "and no assignment to attributes"
)
Evaluated = tuple[Op, dict[str, Any]]
"""An operation and the values of the variables that it reads."""


class Reading:
    """The compiled graphs of operations.

    Args:
        program: the program of the operations.
        owners: the trainer, the actor and the learner, by name.
        evaluated: the operations, with their inputs.
        must_compile: whether an operation that does not compile is refused; else it has no graph.

    Raises:
        ProgramError: an operation cannot be compiled.
    """

    def __init__(
        self,
        program: Program,
        owners: dict[str, Any],
        evaluated: list[Evaluated],
        must_compile: bool = True,
    ) -> None:
        self._program, self._owners, self._must_compile = program, owners, must_compile
        self._inputs: dict[str, list[compiled.Value]] = {}
        self._results: dict[str, Any] = {}
        chosen = [one for one in evaluated if OPERATIONS[one[0].kind].traced]
        try:
            self._read(chosen)
        except Exception:  # noqa: BLE001  (compiling each operation alone finds the cause)
            self._read(self._readable(chosen))
        if self._results and changed_in_place(self._whole):
            for one in chosen:
                self._check_graph(one)

    def _read(self, chosen: list[Evaluated]) -> None:
        if not chosen:
            return
        graph = self._compile(chosen)()
        inputs = iter(graph.main.params)
        for op, given in chosen:
            self._inputs[op.name] = [next(inputs) for _ in _arrays(given)]
        result = graph.main.result
        while result.op == "Depend":
            result = result.args[0]
        for (op, _), found in zip(chosen, result.args, strict=True):
            self._results[op.name] = found
        self._main, self._whole = graph.main, graph

    def _check_graph(self, one: Evaluated) -> None:
        """Refuses an operation that MindSpore miscompiles."""
        op, _ = one
        if op.name not in self._results:
            return
        if primitive := changed_in_place(self._compile([one])()):
            raise ProgramError(
                f"{op.where}\n  {op.name} changes an array in place that is used elsewhere, by "
                f"{primitive} in its compiled graph: make a new one, x = x + 1.0"
            )

    def _readable(self, chosen: list[Evaluated]) -> list[Evaluated]:
        """Returns the operations whose graphs can be read.

        Raises:
            ProgramError: operations cannot be compiled, or updates call Python; it names all.
        """
        found, problems = [], dict[str, Exception]()
        for one in chosen:
            try:
                graph = self._compile([one])
            except Exception as error:  # noqa: BLE001  (raised below)
                problems[_not_compiled(one[0], str(error))] = error
                continue
            try:
                graph()
                found.append(one)
            except RuntimeError as error:
                if one[0].kind == "update" and "PyExecute" in str(error):
                    problems[_calls_python(one[0])] = error
        if problems and self._must_compile:
            raise ProgramError("\n".join([*problems, EXPECTED])) from [*problems.values()][0]
        return found

    def draws(self, op: Op) -> str:
        """Returns the primitive with which an operation draws random numbers; else empty."""
        return random_primitive(self._results[op.name]) if op.name in self._results else ""

    def is_long(self, op: Op) -> bool:
        """Returns whether an operation runs for long uncompiled.

        Its graph has a loop, as that of a tree search, or many nodes, as that of unrolled steps.
        """
        if op.name not in self._results:
            return False
        result = self._results[op.name]
        return has_loop(result) or len(needs(result)) > LONG_NODES

    def sharding(
        self, op: Op, given: dict[str, Any], values: dict[str, Value], split: str, count: int
    ) -> Any:
        """Returns the sharding of an operation's results: a `Sharding`, or tuples of them.

        Args:
            op: one of the operations; of a gradient, the loss is analysed.
            given: its inputs.
            values: the values of variables, with their axes of environments and agents.
            split: `env` or `agent`.
            count: number of environments or agents in the inputs.
        """
        if op.name not in self._results:
            some = any(name in values and values[name].split_by(split) for name in given)
            return Sharding("unknown", by="Python") if some else REPLICATED
        metas = [
            meta
            for name, value in given.items()
            for meta, leaf in zip(_metas(name, values), leaves(value), strict=False)
            if isinstance(leaf, Tensor)
        ]
        places = [meta.along(split) if meta else None for meta in metas]
        shardings = [REPLICATED if axis is None else Sharding("sharded", axis) for axis in places]
        known = dict(zip(self._inputs[op.name], shardings, strict=True))
        return Dependence(self._main, count, known).of(self._results[op.name])

    # ---- compiling -------------------------------------------------------------------------

    def _compile(self, chosen: list[Evaluated]) -> Callable[[], compiled.Program]:
        """Compiles operations. Returns: a function that reads their graph."""
        from mindspore.graph.api import _cell_graph_executor  # noqa: PLC0415  (internal)

        with temporary_folder() as folder:
            file = Path(folder) / SOURCE
            file.write_text(self._source(chosen))
            dumps = os.environ.get("MS_OM_PATH")
            os.environ["MS_OM_PATH"] = folder  # where MindSpore dumps failed compilations
            ms.set_context(mode=ms.GRAPH_MODE)
            try:
                with passing_module("msrl_operations", file) as generated:
                    cell = generated.Operations(self._owners)
                    arrays = [array for _, given in chosen for array in _arrays(given)]
                    phase, _ = _cell_graph_executor.compile(
                        cell, *arrays, phase="export.mindir", do_convert=False
                    )
                return lambda: compiled.read(compiled.graph_of(cell, phase))
            finally:
                mindspore_device.use()
                if dumps is None:
                    del os.environ["MS_OM_PATH"]
                else:
                    os.environ["MS_OM_PATH"] = dumps

    def _source(self, chosen: list[Evaluated]) -> str:
        """Emits a cell with a method for each operation; every array is a separate input."""
        methods, calls, inputs, made = [], [], [], list[str]()
        for number, (op, given) in enumerate(chosen):
            names = [f"a{number}_{at}" for at, _ in enumerate(_arrays(given))]
            left = iter(names)
            lines = [f"{name} = {_rebuilt(value, left)}" for name, value in given.items()]
            if op.kind == "gradient":
                loss, forms = owned(Expr(op.attr["objects"][0])), op.attr.get("forms", ())
                made.append(f"self.loss_{number} = by_place({loss}, {forms})")
            if "named" in op.attr:
                forms, keys = op.attr.get("forms", ()), op.attr.get("keys", ())
                made.append(f"self.act_{number} = with_tuples(self.actor.act, {forms}, {keys})")
            if op.by_function:
                made.append(f"self.update_{number} = {owned(Expr(op.attr['objects'][0]))}")
            lines += _call(op, number)
            body = "\n".join(f"        {line}" for line in lines)
            methods.append(f"    def operation_{number}({', '.join(('self', *names))}):\n{body}\n")
            calls.append(f"self.operation_{number}({', '.join(names)}),")
            inputs += names
        imports = [
            f"from {module} import {name} as {alias}"
            for alias, module, name in self._program.imports
        ]
        text = "\n".join([*methods, *made])
        return "\n".join(
            [
                "import mindspore as ms",
                "from mindspore import nn",
                "from mindspore_rl.rl.by_place import by_place, with_tuples",
                *imports,
                "class Operations(nn.Cell):",
                "    def __init__(self, owners):",
                "        super().__init__(auto_prefix=False)",
                *(f"        self.{o} = owners[{o!r}]" for o in OWNERS if f"self.{o}" in text),
                *(f"        {line}" for line in made),
                *methods,
                f"    def construct({', '.join(('self', *inputs))}):",
                f"        return ({' '.join(calls)})",
                "",
            ]
        )


INSTEAD = (
    (r":=", "assign the name in a line before"),
    (r"\.(\w*param\w*)\(", r"call \1 in __init__: self.own = tuple(...)"),
    (
        r"(self\.[\w.]+) ([-+*/])= (.+)",
        r"write ops.assign(\1, \1 \2 \3), and make a Parameter of it",
    ),
    (
        r"\.(name|startswith|endswith|join|split|strip|replace)\b",
        "MindSpore compiles no text's methods: compute it in __init__, and keep it as self.own",
    ),
)
"""Patterns of lines that do not compile, and what to write."""


def _not_compiled(op: Op, message: str) -> str:
    """Returns the lines of an operation that MindSpore does not compile, and its reason."""
    lines = (line for line in message.splitlines() if line.strip("- ") and line[:2] != "- ")
    text = next(lines, "")
    text = re.split(r" You can use os\.environ| Try to set jit_syntax_level", text)[0]
    inside = _users_line(message)
    python = re.search(r"'(max|min)\(", text)
    found = ((re.search(pattern, inside), hint) for pattern, hint in INSTEAD)
    return (
        f"{op.where}\n  {op.name} cannot be compiled: {text}"
        + (f"\n  raised at {inside}" if inside and str(op.where) not in inside else "")
        + (f"\n  write ops.{python[1]}imum in place of {python[1]}" if python else "")
        + "".join(f"\n  {part.expand(hint)}" for part, hint in found if part)
    )


def _calls_python(op: Op) -> str:
    return (
        f"{op.where}\n  {op.name} calls Python in its compiled graph: an assignment to a Parameter "
        "of another object, self.actor.p += x, is ops.assign_add(self.actor.p, x)"
    )


def _call(op: Op, number: int) -> list[str]:
    """Emits the last lines of an operation's method."""
    args = ", ".join(op.args)
    if op.kind == "agent_act":
        method = f"act_{number}" if "named" in op.attr else "actor.act"
        return [f"return self.{method}({op.call})"]
    if op.kind == "gradient":
        return [f"return self.loss_{number}({args})"]
    if op.by_function:
        return [f"self.update_{number}({args})", "return 0"]
    if op.kind == "update":
        return [f"{owned(Expr(op.attr['objects'][0]))}({args})", "return 0"]
    return [f"return {owned(op.args[0])}"]


def _arrays(given: dict[str, Any]) -> list[Tensor]:
    return [leaf for value in given.values() for leaf in leaves(value) if isinstance(leaf, Tensor)]


def _rebuilt(value: Any, names: Iterator[str]) -> str:
    """Returns a value as source text over the names of its arrays."""
    if isinstance(value, (tuple, list)):
        return f"({' '.join(f'{_rebuilt(part, names)},' for part in value)})"
    return next(names) if isinstance(value, Tensor) else repr(value)


def _metas(name: str, values: dict[str, Value]) -> Iterator[Value | None]:
    yield from values[name].leaves if name in values else iter(lambda: None, 0)


def _users_line(text: str) -> str:
    """Finds the innermost line of the user's code in the message of a failed compilation."""
    found = re.findall(r"In file (.+?):(\d+)", text)
    package = str(Path(ms.__file__).parent)
    ours = [(f, int(n)) for f, n in found if not f.startswith(package) and SOURCE not in f]
    if not ours:
        return ""
    file, line = os.path.normpath(ours[-1][0]), ours[-1][1]
    return f"{file}:{line}: {linecache.getline(file, line).strip()}"
