"""Finds in-place changes of the user's functions to values that others hold.

Python changes an object for everyone who refers to it. MindSpore compiles the change as a new value
of one name: a second name, a view, the caller and an attribute keep the old value. The two agree
only if nothing else refers to the object.
"""

import ast
import functools
import inspect
import linecache
import sys
import textwrap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mindspore_rl.platform.syntax import own_nodes
from mindspore_rl.platform.user_modules import is_users
from mindspore_rl.purity.calls import profiled
from mindspore_rl.rl.operators import leaves, to_array

_METHODS = {"add", "append", "clear", "difference_update", "discard", "extend", "insert"}
_METHODS |= {"intersection_update", "pop", "popitem", "remove", "reverse", "setdefault", "sort"}
_METHODS |= {"update"}
PARTS = (
    "which a compiled cell reads once, also where an update changes it between two readings: take "
    "ops.narrow, or ops.gather, of the Parameter"
)
HINT = (
    "a compiled cell changes it for one name alone: make a new value, x = ops.where(...), "
    "d = {**d, key: value}, xs = [*xs, x]"
)


@contextmanager
def watch_changes(outermost: FrameType) -> Iterator[tuple[list[str], list[str]]]:
    """Records what user code does that a compiled cell does not, with the lines.

    Args:
        outermost: the frame that holds the arguments of the functions.

    Yields: in-place changes of objects that something else refers to; and slices of Parameters
        (MindSpore keeps `weight[:, :k]` of before an update in the same cell), and entries of
        them that changed while a name held them.
    """
    changes, slices = list[str](), list[str]()
    views: list[tuple[weakref.ref, np.ndarray, str]] = []

    def note(frame: FrameType, event: Any, _: Any) -> None:
        if event == "return" and is_users(frame.f_globals.get("__name__", "")):
            for view, was, place in views:
                now = view()
                if now is not None and not np.array_equal(now.asnumpy(), was, equal_nan=True):
                    slices.append(place)
            for text, line, value in _changed(frame):
                if _held(value, text, frame, outermost):
                    changes.append(_at(text, line, frame))

    def read(self: Parameter, index: Any) -> Any:
        frame = sys._getframe(1)
        found = Tensor.__getitem__(self, index)
        if is_users(frame.f_globals.get("__name__", "")):
            place = _at(self.name, frame.f_lineno, frame)
            if isinstance(index, (slice, tuple)):
                slices.append(place)
            elif isinstance(index, int):  # in Python, it changes with the Parameter
                views.append((weakref.ref(found), np.array(found.asnumpy()), place))
        return found

    Parameter.__getitem__ = read  # also one without a name, nets[0].weight[:, :2]
    try:
        with profiled(note):
            yield changes, slices
    finally:
        del Parameter.__getitem__


def copies(inputs: dict[str, Any]) -> dict[str, list[np.ndarray]]:
    """Copies the arrays of an operation's inputs."""
    return {
        name: [np.array(to_array(leaf)) for leaf in leaves(value) if isinstance(leaf, Tensor)]
        for name, value in inputs.items()
    }


def first_changed(before: dict[str, list[np.ndarray]], inputs: dict[str, Any]) -> str:
    """Returns the name of the first input that changed; empty if none did."""
    for name, now in copies(inputs).items():
        for old, new in zip(before[name], now, strict=True):
            if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
                return name
    return ""


def _changed(frame: FrameType) -> Iterator[tuple[str, int, Any]]:
    """Yields the objects that a returning function may have changed in place.

    Each with the text of its name and the line.
    """
    for text, line, grows in _changes(frame.f_code):
        value = _value(text, frame)
        kinds = (list, dict, set) if grows else (list, dict, set, Tensor, np.ndarray)
        if isinstance(value, kinds) and not isinstance(value, Parameter):
            yield text, line, value


@functools.cache
def _changes(code: CodeType) -> tuple[tuple[str, int, bool], ...]:
    """Finds the names and attributes that a function's own statements change in place.

    Returns: for each its text, its line, and whether arrays are exempt: `x += y` makes a new array.
    """
    found: dict[tuple[str, bool], int] = {}
    for node in _nodes(code):
        target, grows = None, False
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, (ast.Name, ast.Attribute)):
            target, grows = node.target, True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target, grows = (node.func.value if node.func.attr in _METHODS else None), True
        while isinstance(target, ast.Subscript):
            target = target.value
        if target is not None and _is_path(target):
            line = code.co_firstlineno + getattr(node, "lineno", 1) - 1
            found.setdefault((ast.unparse(target), grows), line)
    return tuple((text, line, grows) for (text, grows), line in found.items())


def _nodes(code: CodeType) -> Iterator[ast.AST]:
    """Yields the syntax of a function's own statements, without functions in it."""
    if code.co_filename == "<string>":  # of `eval`: inspect would search all modules for it
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):  # part of a longer expression, such as a lambda
        return
    yield from own_nodes(ast.Module(getattr(tree.body[0], "body", []), []))


def _value(text: str, frame: FrameType) -> Any:
    """Returns the value of a name or of an attribute in a frame; None if there is none."""
    name, *path = text.split(".")
    value = frame.f_locals.get(name, frame.f_globals.get(name))
    for attribute in path:
        value = getattr(value, attribute, None)
    return value


def _at(text: str, line: int, frame: FrameType) -> str:
    file = frame.f_code.co_filename
    return f"`{text}` at {file}:{line} ({linecache.getline(file, line).strip()})"


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _held(value: Any, text: str, frame: FrameType, outermost: FrameType) -> bool:
    """Returns whether anything but one local name of a function refers to an object."""
    if text not in frame.f_locals:
        return True
    if any(_holds(v, value) for name, v in frame.f_locals.items() if name != text):
        return True
    around: FrameType | None = frame
    while around is not None and around is not outermost:
        around = around.f_back
        if around is not None and any(_holds(v, value) for v in around.f_locals.values()):
            return True
    return False


def _holds(holder: Any, value: Any, depth: int = 2) -> bool:
    if holder is value:
        return True
    if isinstance(holder, Tensor):
        return isinstance(value, Tensor) and _memory(holder) == _memory(value)
    if isinstance(holder, np.ndarray):
        return isinstance(value, np.ndarray) and np.may_share_memory(holder, value)
    if not depth:
        return False
    if isinstance(holder, dict):
        holder = tuple(holder.values())
    elif not isinstance(holder, (list, tuple)):
        if not is_users(type(holder).__module__):
            return False
        holder = tuple(getattr(holder, "__dict__", {}).values())
    return any(_holds(part, value, depth - 1) for part in holder)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
