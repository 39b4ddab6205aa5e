"""Steps in C++: of a user's environment, and messages when they are not available."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl.environments import registry
from mindspore_rl.environments.check import check
from mindspore_rl.environments.in_graph.native_step import STEP, NativeEnvironment, macros_of
from mindspore_rl.errors import EnvironmentFailure, MsrlError
from mindspore_rl.platform import toolchain
from tests.commands import python

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture
def corridor(tmp_path):
    """Copies the example with a change in its C++ source; returns the environment's name."""

    def make(old="", new="", name="NativeCorridor"):
        shutil.copy(EXAMPLES / "corridor.py", tmp_path)
        source = (EXAMPLES / "corridor.cpp").read_text()
        assert old in source
        (tmp_path / "corridor.cpp").write_text(source.replace(old, new))
        return f"{tmp_path / 'corridor.py'}:{name}"

    return make


def test_a_source_that_differs_from_the_operators_is_found(corridor):
    assert check(corridor()) == []
    (found,) = check(corridor("-0.01f", "-0.02f"))
    assert found == "step 0: reward of the native step is 0.01 away from step's"


def test_without_a_compiler_the_operators_run(corridor, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not isinstance(registry.make_graph(corridor()), NativeEnvironment)


def test_a_subclass_has_its_own_step(corridor):
    name = corridor()
    with Path(name.split(":")[0]).open("a") as file:
        file.write("\n\nclass Other(NativeCorridor):\n    pass\n")
    other = registry.make_graph(name.replace("NativeCorridor", "Other"))
    assert not isinstance(other, NativeEnvironment)


def test_a_source_that_does_not_compile_is_shown(corridor, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MsrlError, match=r"corridor\.cpp:16.*nowhere"):
        registry.make_graph(corridor("-0.01f", "nowhere"))
    assert list((tmp_path / "mindspore_rl" / "native").iterdir()) == []


def test_who_has_no_home_has_a_cache(corridor, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.chdir(tmp_path)
    registry.make_graph(corridor())
    assert not Path("~").exists()
    assert list(tmp_path.glob("msrl-*/native/corridor-*.so"))


def test_a_source_that_is_missing_is_named(corridor):
    name = corridor()
    Path(name.split(":")[0]).with_suffix(".cpp").unlink()
    with pytest.raises(EnvironmentFailure, match=r"native is 'corridor.cpp', but there is no file"):
        registry.make_graph(name)


def test_actions_of_another_type_or_size(corridor):
    env = registry.make_graph(corridor())
    state, noise = Tensor(np.zeros((3, 2), np.float32)), Tensor(np.zeros((3, 1), np.float32))
    place = env.step(state, Tensor(np.array([0, 1, 1], np.int64)), noise)[0].asnumpy()[:, 0]
    np.testing.assert_allclose(place, [-0.1, 0.1, 0.1])
    with pytest.raises(EnvironmentFailure, match="actions are .2., expected 3 environments'"):
        env.step(state, Tensor(np.array([0, 1], np.int32)), noise)[0].asnumpy()


SOURCES = {"graph:CartPole-v1": "cartpole.cpp", "graph:Pendulum-v1": "pendulum.cpp"}
DRIVER = r"""
// A driver whose GPU is this loop: the kernel's arguments are read as the driver reads them.
#include <cstdio>
#include <cstring>
#include STEP_H

static void *context = nullptr;

extern "C" int cuCtxGetCurrent(void **found) {
  *found = context;
  return 0;
}
extern "C" int cuDevicePrimaryCtxRetain(void **made, int device) {
  *made = (void *)3;
  return device;
}
extern "C" int cuCtxSetCurrent(void *given) {
  context = given;
  return 0;
}
extern "C" int cuModuleLoad(void **module, const char *path) {
  if (context != (void *)3) return 201;
  *module = (void *)path;
  std::FILE *file = std::fopen(path, "r");
  return file == nullptr ? 301 : std::fclose(file);
}
extern "C" int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = module;
  return std::strcmp(name, "step") ? 500 : 0;
}
extern "C" int cuLaunchKernel(void *, unsigned grid, unsigned, unsigned, unsigned block, unsigned,
                              unsigned, unsigned, void *stream, void **arguments, void **) {
  if (stream != (void *)7) return 400;
  const long long count = *(long long *)arguments[1];
  for (long long row = 0; row < (long long)grid * block; row++)
    if (row < count) step_row(*(Arrays *)arguments[0], row);
  return 0;
}
"""
CALL = """
import ctypes, sys, numpy as np
folder, *operators = sys.argv[1:]
for device, operator in zip(("cpu", "gpu"), operators):
    arrays = [np.ascontiguousarray(a) for a in np.load(f"{folder}/in.npz").values()]
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    shape = (ctypes.c_int64 * 2)(*arrays[0].shape)
    shapes = (ctypes.POINTER(ctypes.c_int64) * 1)(shape)
    step = ctypes.CDLL(operator).step
    code = step(len(arrays), pointers, None, shapes, None, ctypes.c_void_p(7), None)
    assert code == 0, code
    np.savez(f"{folder}/{device}.npz", *arrays)
"""


@pytest.fixture(params=SOURCES)
def source(request):
    """A source of the package with its compiler settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "")
        env = registry.make_graph(request.param)
    path = STEP.parent / SOURCES[request.param]
    return path, macros_of(path, env), env


@pytest.mark.parametrize("architecture", [60, 90])
def test_nvrtc_makes_kernels(source, architecture):
    path, macros, _ = source
    text = toolchain.kernel(STEP, macros, (path,), architecture).read_text()
    assert f".target sm_{architecture}" in text
    assert ".visible .entry step(" in text


def test_what_nvrtc_refuses_is_shown(corridor, source):
    _, macros, _ = source
    path = Path(corridor("-0.01f", "nowhere").split(":")[0]).with_suffix(".cpp")
    with pytest.raises(MsrlError, match=r"NVRTC cannot compile .*\n.*corridor\.cpp\(16\).*nowhere"):
        toolchain.kernel(STEP, {**macros, "SOURCE": f'"{path}"', "DISCRETE": 1}, (path,), 60)


def test_the_operator_of_the_gpu_launches_its_kernel(source, tmp_path):
    """300 environments, three blocks of 128: every row as on the CPU, and none beyond."""
    path, macros, env = source
    rng = np.random.default_rng(0)
    count, obs = 300, env.spec.obs_shape[0]
    discrete = macros["DISCRETE"]
    action = rng.integers(0, 2, count).astype(np.int32) if discrete else rng.random(count)
    inputs = [
        rng.standard_normal((count, env.state_size)).astype(np.float32),
        action if discrete else action.astype(np.float32),
        rng.random((count, env.noise_size)).astype(np.float32),
    ]
    outputs = [
        np.zeros((count, env.state_size), np.float32),
        np.zeros((count, obs), np.float32),
        np.zeros((count, obs), np.float32),
        np.zeros(count, np.float32),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
    ]
    kernel = tmp_path / "kernel.ptx"
    kernel.write_text("")
    driver = tmp_path / "driver.cpp"
    driver.write_text(DRIVER)
    made = toolchain.library(driver, {**macros, "STEP_H": f'"{STEP}"'}, (STEP, path))
    (tmp_path / "libcuda.so.1").symlink_to(made)
    operators = {
        "cpu": toolchain.library(STEP, macros, (path,)),
        "gpu": toolchain.library(STEP, {**macros, "KERNEL": f'"{kernel}"'}, (path,)),
    }
    np.savez(tmp_path / "in.npz", *inputs, *outputs)
    libraries = {"LD_LIBRARY_PATH": str(tmp_path)}
    python("-c", CALL, tmp_path, *operators.values(), env=libraries, check=True)
    cpu, gpu = (np.load(tmp_path / f"{device}.npz") for device in operators)
    for name in cpu.files:
        np.testing.assert_array_equal(cpu[name], gpu[name])
    assert cpu["arr_7"].any() or cpu["arr_8"].any() or env.spec.name == "graph:Pendulum-v1"
