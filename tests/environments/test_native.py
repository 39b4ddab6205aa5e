"""Steps in C++: of a user's environment, and what is said when they cannot be had."""

import os
import shutil
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl.environments import environment
from mindspore_rl.environments.check import check
from mindspore_rl.environments.native import NativeEnvironment
from mindspore_rl.errors import EnvironmentFailure, MsrlError

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture
def corridor(tmp_path):
    """Makes a copy of the example with its C++ source changed; returns the environment's name."""

    def make(old="", new="", name="NativeCorridor"):
        shutil.copy(EXAMPLES / "corridor.py", tmp_path)
        source = (EXAMPLES / "corridor.cpp").read_text()
        assert old in source
        (tmp_path / "corridor.cpp").write_text(source.replace(old, new))
        return f"{tmp_path / 'corridor.py'}:{name}"

    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield make
    ms.set_context(mode=before)


def test_a_source_that_differs_from_the_operators_is_found(corridor):
    assert check(corridor()) == []
    (found,) = check(corridor("-0.01f", "-0.02f"))
    assert found == "step 0: reward of the native step is 0.01 away from step's"


def test_without_a_compiler_the_operators_run(corridor, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not isinstance(environment.make_graph(corridor()), NativeEnvironment)


def test_a_subclass_has_its_own_step(corridor):
    name = corridor()
    with Path(name.split(":")[0]).open("a") as file:
        file.write("\n\nclass Other(NativeCorridor):\n    pass\n")
    other = environment.make_graph(name.replace("NativeCorridor", "Other"))
    assert not isinstance(other, NativeEnvironment)


def test_a_source_that_does_not_compile_is_shown(corridor, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MsrlError, match=r"corridor\.cpp:16.*nowhere"):
        environment.make_graph(corridor("-0.01f", "nowhere"))
    assert list((tmp_path / "mindspore_rl" / "native").iterdir()) == []


def test_who_has_no_home_has_a_cache(corridor, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.chdir(tmp_path)
    environment.make_graph(corridor())
    assert not Path("~").exists()
    assert list(tmp_path.glob("msrl-*/native/corridor-*.so"))


def test_a_source_that_is_missing_is_named(corridor):
    name = corridor()
    Path(name.split(":")[0]).with_suffix(".cpp").unlink()
    with pytest.raises(EnvironmentFailure, match=r"native is 'corridor.cpp', but there is no file"):
        environment.make_graph(name)


def test_actions_of_another_type_or_size(corridor):
    env = environment.make_graph(corridor())
    state, noise = Tensor(np.zeros((3, 2), np.float32)), Tensor(np.zeros((3, 1), np.float32))
    place = env.step(state, Tensor(np.array([0, 1, 1], np.int64)), noise)[0].asnumpy()[:, 0]
    np.testing.assert_allclose(place, [-0.1, 0.1, 0.1])
    with pytest.raises(EnvironmentFailure, match="actions are .2., expected 3 environments'"):
        env.step(state, Tensor(np.array([0, 1], np.int32)), noise)[0].asnumpy()
