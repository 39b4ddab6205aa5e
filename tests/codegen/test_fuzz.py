"""Random cells give the same results in native code and in MindSpore.

MSRL_FUZZ=1000 runs that many cells instead of a few.
"""

import importlib.util
import os
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from mindspore_rl.codegen import tiling
from mindspore_rl.codegen.ops import elementwise
from tests.codegen.programs import cells
from tests.codegen.units import both

FEW = 6


def _inputs(rows, columns, seed):
    rng = np.random.default_rng(seed)
    floats = [
        rng.normal(size=shape).astype(np.float32)
        for shape in ((rows, columns), (rows, columns), (columns,), (columns, columns))
    ]
    return (*floats, rng.integers(0, rows, rows).astype(np.int32))


def _cell(text, folder, number=[0]):  # noqa: B006  (a name for each module)
    number[0] += 1
    name = f"random_cell_{number[0]}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.Random()


def _check(case, folder):
    text, rows, columns, seed = case
    (wanted, state), (found, native_state) = both(_cell(text, folder), _inputs(rows, columns, seed))
    for one, other in [
        *zip(wanted, found, strict=True),
        *((state[k], native_state[k]) for k in state),
    ]:
        largest = max(float(np.abs(one).max()), 1.0)
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * largest, err_msg=text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cells")


@settings(
    max_examples=int(os.environ.get("MSRL_FUZZ", FEW)),
    deadline=None,
    database=None,
    derandomize="MSRL_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # a failure prints its cell; shrinking would take minutes
)
@given(cells())
def test_random_cells_agree_with_mindspore(folder, case):
    with pytest.MonkeyPatch.context() as patch:
        if case[-1] % 2:  # every other cell in tiles of few rows
            patch.setattr(tiling, "MIN_WORK", 0)
            patch.setattr(tiling, "MAX_ROWS", 4)
        _check(case, folder)


def test_a_wrong_row_is_found(folder, monkeypatch):
    text = """import mindspore as ms
from mindspore import nn, ops

class Random(nn.Cell):
    def construct(self, x, y, bias, weight, index):
        return x - ops.tanh(y)
"""
    _check((text, 5, 3, 1), folder)
    monkeypatch.setitem(elementwise.ELEMENTWISE, "Sub", "{1} - {0}")
    with pytest.raises(AssertionError):
        _check((text, 5, 3, 1), folder)
