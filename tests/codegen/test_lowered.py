"""Tests of the choice between native code and MindSpore for a cell, and of its messages."""

import contextlib
import re
import shutil
import subprocess
from functools import partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.codegen.ops import elementwise
from mindspore_rl.communication.group import HostGroup
from mindspore_rl.platform import toolchain
from mindspore_rl.runtime.rank import native_or_mindspore
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell
from mindspore_rl.runtime.rank.native_or_mindspore import LoweredCell
from tests.codegen.units import graph_mode
from tests.tiers import quick


class Count(nn.Cell):
    """Adds a number to a parameter in each iteration of a loop."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.sum = Parameter(Tensor(np.zeros(3, np.float32)), name="sum")
        self.turns_1 = Parameter(Tensor(5, ms.int32), name="turns_1", requires_grad=False)

    def construct(self, x):
        i = ms.Tensor(0, ms.int32)
        while i < self.turns_1:
            ops.assign_add(self.sum, x * 2.0)
            i = i + 1
        return self.sum - 1.0, (i, ops.tanh(x))


class Masked(nn.Cell):
    def construct(self, x):
        return ops.where(x > 1.0, x, float("nan"))


class Histogram(nn.Cell):
    """A cell without a native form."""

    def construct(self, x):
        return ops.histc(x, 4)


class Shared(nn.Cell):
    """Adds up an array over replicas."""

    def __init__(self, group):
        super().__init__(auto_prefix=False)
        self.total = group("sum")

    def construct(self, x):
        return self.total(x)


class Row(nn.Cell):
    """Writes a row that may not exist."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.table = Parameter(Tensor(np.zeros((4, 3), np.float32)), name="table")

    def construct(self, x, at):
        ops.scatter_update(self.table, at.reshape(1), x.expand_dims(0))
        return x


class Apart(nn.Cell):
    """Uses parameters only through a function; returns a number that is compiled in."""

    def __init__(self, function):
        super().__init__(auto_prefix=False)
        self.function = function

    def construct(self, gradients):
        self.function(gradients[0])
        return 0, gradients[1]


X = np.arange(3, dtype=np.float32)


class Saturated(nn.Cell):
    def construct(self, x):
        return ops.tanh(x)


@pytest.fixture(autouse=True)
def compiled():
    with graph_mode():
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mindspore_rl" / "native"


def lowered(cell, *inputs, owners=(), alone=contextlib.nullcontext):
    told = []
    turns = [cell.turns_1] if hasattr(cell, "turns_1") else []
    made = LoweredCell(
        cell,
        list(owners),
        turns,
        lambda n: n,
        lambda *chosen: told.append(chosen),
        print,
        alone=alone,
    )
    return made, made(*inputs), told


def test_a_native_cell_works_on_the_parameters_and_is_checked_once(cache):
    cell = Count()
    made, (rest, (turns, tanh)), told = lowered(cell, X)
    assert told == [(True, "")]
    np.testing.assert_allclose(rest, 10 * X - 1)  # the check's own runs left no trace
    np.testing.assert_allclose(cell.sum.asnumpy(), 10 * X)
    assert turns == 5
    np.testing.assert_allclose(tanh, np.tanh(X), 1e-6)
    made(X)
    np.testing.assert_allclose(cell.sum.asnumpy(), 20 * X)
    assert len(list(cache.glob("cell-*.so"))) == len(list(cache.glob("cell-*.json"))) == 1


def test_saturated_units_are_mindspores():
    """MindSpore's tanh is off by up to 1e-4 near 5: an exact one would be another program."""
    x = np.linspace(-8, 8, 4001, dtype=np.float32)
    _, found, _ = lowered(Saturated(), x)
    wanted = ops.tanh(Tensor(x)).asnumpy()
    assert np.abs(wanted - np.tanh(x)).max() > 5e-5
    np.testing.assert_allclose(found, wanted, 0, 1e-6)


def test_a_constant_may_be_no_number():
    _, found, told = lowered(Masked(), X)
    assert told == [(True, "")]
    np.testing.assert_array_equal(found, [np.nan, np.nan, 2])


def test_the_cpp_names_the_lines_that_it_comes_from(capsys):
    lowered(Count(), X)
    text = capsys.readouterr().out
    before, _, after = text.partition("ops.assign_add(self.sum, x * 2.0)\n")
    assert re.search(r"// test_lowered.py:\d+: $", before)
    assert "{" in after
    assert "return self.sum - 1.0, (i, ops.tanh(x))\n" in after


class Explained(nn.Cell):
    def construct(self, x):
        return 1.0 - x.sum() / ops.exp(x).sum(), 2.0 * x, x.sum() - 3.0, x - float("inf")


def test_a_unit_knows_the_constants_that_its_results_are_taken_from():
    made, _, told = lowered(Explained(), X)
    assert told == [(True, "")]
    assert made._run.unit.scales == (1.0, 0.0, 3.0, 0.0)


def test_results_are_not_overwritten_by_the_next_call():
    made, (first, _), _ = lowered(Count(), X)
    kept = first.copy()
    made(X)
    np.testing.assert_array_equal(first, kept)


def test_a_primitive_without_a_row_leaves_the_cell_to_mindspore():
    _, result, told = lowered(Histogram(), X)
    np.testing.assert_array_equal(result.asnumpy(), np.histogram(X, 4)[0])
    ((native, why),) = told
    assert not native
    assert re.fullmatch(
        r"no native form of \w+ \(test_lowered.py:\d+: return ops.histc\(x, 4\)\)", why
    )
    assert "Hist" in why


def test_nobody_waits_for_a_cell_that_has_no_native_code(monkeypatch):
    """Each replica has to compile it anyway."""
    lowered(Histogram(), X)
    monkeypatch.setattr(native_or_mindspore, "in_turn", pytest.fail)
    _, _, told = lowered(Histogram(), X)
    assert [native for native, _ in told] == [False]


def test_a_cell_that_another_replica_has_compiled_is_neither_compiled_nor_checked(monkeypatch):
    lowered(Count(), X)
    monkeypatch.setattr(CompiledCell, "graph", pytest.fail)
    monkeypatch.setattr(native_or_mindspore, "difference", pytest.fail)
    _, _, told = lowered(Count(), X)
    assert told == [(True, "")]


def test_a_cell_is_checked_without_the_other_replicas(cache):
    """The others may wait for the result of the check, so no collective of it may wait for them."""

    def reduce(reduction, array):
        called.append(reduction)
        return array

    called = []
    group = HostGroup(lambda: reduce)
    cell = Shared(group)
    _, total, told = lowered(cell, X, alone=group.alone)
    assert told == [(True, "")]
    assert called == ["sum"]  # by the call after the check
    np.testing.assert_array_equal(total, X)


def test_a_difference_leaves_the_cell_to_mindspore_and_is_remembered(cache, monkeypatch):
    monkeypatch.setitem(elementwise.ELEMENTWISE, "Tanh", "{0}")
    for _ in range(2):
        _, (_, (_, tanh)), told = lowered(Count(), X)
        np.testing.assert_allclose(tanh.asnumpy(), np.tanh(X), 1e-6)
        ((native, why),) = told
        assert not native
        assert "its native code gives another result 2, by" in why


def test_no_compiler_and_a_broken_one(cache, monkeypatch):
    monkeypatch.setenv("CXX", "")
    assert toolchain.compiler() is None
    monkeypatch.setenv("CXX", shutil.which("false"))
    _, (rest, _), told = lowered(Count(), X)
    np.testing.assert_allclose(rest.asnumpy(), 10 * X - 1)
    assert not told[0][0]
    assert "false fails" in told[0][1]


def test_the_library_of_threads_is_compiled_once_beside_other_work(monkeypatch, tmp_path):
    run, commands = subprocess.run, []
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **options: commands.append(args) or run(*args, **options)
    )
    toolchain.begin(partial(toolchain.library, tmp_path / "lost.cpp", {}), toolchain.threads)
    assert toolchain.threads().is_file()
    assert len(commands) == 1


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    _, _, told = lowered(Count(), X)
    assert not told[0][0]
    assert "can be written" in told[0][1]


def test_a_row_that_is_not_there_ends_the_call():
    made, _, told = lowered(Row(), X, np.int32(2))
    assert told[0][0]
    with pytest.raises(RuntimeError, match="an operator in a native cell failed"):
        made(X, np.int32(7))


def test_too_large_a_cell_is_left_to_mindspore(monkeypatch):
    monkeypatch.setattr("mindspore_rl.codegen.emit_unit.MAX_NODES", 3)
    _, _, told = lowered(Count(), X)
    assert not told[0][0]
    assert "operators" in told[0][1]


@pytest.mark.parametrize("found", [True, False])
def test_parameters_reached_by_a_function_only(cache, found):
    count = Count()

    def add(x):
        ops.assign_add(count.sum, x)

    cell = Apart(add)
    _, (zero, given), told = lowered(cell, (X, X + 1), owners=[count] if found else [])
    if found:
        assert told == [(True, "")]
    else:
        assert not told[0][0] and "not found by its name, sum" in told[0][1]
    assert int(zero) == 0
    np.testing.assert_array_equal(np.asarray(given), X + 1)
    np.testing.assert_array_equal(count.sum.asnumpy(), X)


def test_a_graph_that_was_seen_needs_no_mindspore(cache, monkeypatch):
    lowered(Count(), X)

    def refuse(*_):
        raise AssertionError("MindSpore was asked for the graph")

    monkeypatch.setattr(CompiledCell, "graph", refuse)
    cell = Count()
    _, _, told = lowered(cell, X)
    assert told == [(True, "")]
    np.testing.assert_allclose(cell.sum.asnumpy(), 10 * X)
    with pytest.raises(AssertionError, match="was asked"):
        lowered(Count(), X[:2])


@pytest.mark.parametrize("damage", quick(["", "{}", "[1]", '{"text": 3}'], 0, 3))
def test_a_damaged_cache_is_made_again(cache, damage):
    lowered(Count(), X)
    for path in cache.glob("graph-*.json"):
        path.write_text(damage)
    _, _, told = lowered(Count(), X)
    assert told == [(True, "")]
