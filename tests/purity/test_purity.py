"""Functions that depend on more than their arguments are detected, whatever they read or keep."""

import datetime
import functools
import gc
import os
import socket
import time
import uuid
from types import ModuleType, SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from mindspore_rl.api import Learner
from mindspore_rl.purity.calls import watch
from mindspore_rl.purity.state import State
from mindspore_rl.rl.parameters import find_parameters

COUNT, LIST, TABLE = 0, [0], {}
SETTINGS = ModuleType("settings")
SETTINGS.args = SimpleNamespace(n=0)
ARRAY, TENSOR = np.zeros(2), Tensor(np.zeros(2, np.float32))
WEIGHT = Parameter(Tensor(np.zeros(2, np.float32)), name="w")


class Hyper:
    n = 0


def in_global():
    global COUNT  # noqa: PLW0603
    COUNT += 1


def in_list():
    LIST[0] += 1


def in_class():
    Hyper.n += 1


def in_object(own=Hyper()):  # noqa: B008
    own.m = getattr(own, "m", 0) + 1


def in_module():
    SETTINGS.args.n += 1


def in_default(calls=[0]):  # noqa: B006
    calls[0] += 1


def in_itself():
    in_itself.calls = getattr(in_itself, "calls", 0) + 1


def in_array():
    ARRAY[0] += 1.0


def in_tensor():
    TENSOR[0] += 1.0


def in_closure():
    return CLOSURE()


def _closure():
    calls = 0

    def count():
        nonlocal calls
        calls += 1

    return count


CLOSURE = _closure()


def lazy():
    TABLE.setdefault("one", 1.0)


def in_weight():
    WEIGHT.asnumpy()[0] += 1.0


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (in_global, "COUNT"),
        (in_list, "LIST[0]"),
        (in_class, "Hyper.n"),
        (in_object, "in_object: defaults[0]"),
        (in_module, "args.n"),
        (in_default, "in_default: defaults[0][0]"),
        (in_itself, "in_itself: attributes"),
        (in_array, "ARRAY"),
        (in_tensor, "TENSOR"),
        (in_closure, "count: calls"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_changes_is_named(function, path):
    before = State({"function": function})
    assert not before.changed(State({"function": function}))
    function()
    assert path in before.changed(State({"function": function}))


@pytest.mark.parametrize("function", [lazy, in_weight])
def test_what_is_made_once_and_what_ranks_share_is_no_change(function):
    lazy()
    before = State({"function": function})
    function()
    assert not before.changed(State({"function": function}))


def text_of_a_module():
    return ms.__name__


def test_what_an_embedding_began_with_is_no_state():
    """Optimisers may update the table in the memory of its first values."""
    cell = ms.nn.Embedding(3, 2)
    before = State({"cell": cell})
    cell.init_tensor = Tensor(np.ones((3, 2), np.float32))
    assert before.changed(State({"cell": cell})) == ""


def test_a_callback_of_the_garbage_collector_is_no_call_of_the_program():
    def timed(phase, info):
        time.perf_counter()

    gc.callbacks.append(timed)
    try:
        with watch({}) as found:
            kept = [[] for _ in range(100_000)]
    finally:
        gc.callbacks.remove(timed)
    assert (len(kept), found.impure) == (100_000, [])
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (os.getpid, "os.getpid at"),
        (lambda: hash("text"), "hash at"),
        (lambda: id(LIST), "id at"),
        (datetime.datetime.now, "datetime.now at"),
        (lambda: os.environ.get("HOME"), "os.environ at"),
        (lambda: os.getenv("HOME"), "os.environ at"),
        (socket.gethostname, "socket.gethostname at"),
        (uuid.uuid4, "posix.urandom at"),
        (lambda: os.path.exists("/"), "os.stat at"),
        (lambda: open(__file__).close(), "open at"),
        (np.random.rand, "numpy.random"),
    ],
)
def test_what_is_asked_is_named_with_its_line(call, asked):
    with watch({}) as found:
        call()
    assert asked in found.impure[0][0]
    assert found.impure[0][1]


def test_what_mindspore_asks_for_itself_does_not_count():
    with watch({}) as found:
        ms.ops.relu(TENSOR)
        text_of_a_module()
        os.fspath("/")
        ms.log.error("a line of the log, which has the time")
    assert found.impure == []


def _doubled(function):
    @functools.wraps(function)
    def wrapper(x):
        return 2 * function(x)

    return wrapper


@_doubled
def decorated(x):
    return x


@functools.cache
def cached(x):
    return x


@ms.jit
def compiled(x):
    return x


@pytest.mark.parametrize(("function", "told"), [(decorated, 1), (cached, 0), (compiled, 0)])
def test_decorators_that_mindspore_would_leave_out(function, told):
    found = State({"function": function}).misread()
    assert len(found) == told
    with watch(found) as watched:
        function(1)
    assert len(watched.misread) == told
    assert all("calls decorated by its decorator of" in text for text in watched.misread)


@_doubled
def decorated_likewise(x):
    return x


def test_a_call_of_another_function_with_the_same_decorator_does_not_count():
    found = State({"function": decorated}).misread()
    with watch(found) as watched:
        decorated_likewise(1)
    assert watched.misread == []


class Moments:
    def __init__(self):
        self.mean = WEIGHT

    @property
    def twice(self):
        return 2 * self.mean


def test_properties_of_objects_with_parameters_that_a_compiled_cell_reads_once():
    learner = Learner()
    learner.moments = Moments()
    find_parameters(learner)
    (((_, text),),) = State({"learner": learner}).misread().values()
    assert "Moments.twice" in text and "`twice()`" in text


class Odd:
    """Objects like those of a notebook: attributes that fail, a module whose source is not text."""

    __module__ = property(lambda self: "odd")

    @property
    def __dict__(self):
        raise RuntimeError("not now")


def test_objects_that_are_not_as_others_are_passed_by():
    assert State({"odd": [Odd(), 1.0]}).found == State({"odd": [Odd(), 1.0]}).found
    assert State({"odd": [Odd(), 1.0]}).changed(State({"odd": [Odd(), 2.0]})) == "odd[1]"
