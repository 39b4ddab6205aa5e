"""Native code for this processor also runs on 64-bit ARM with NEON, in an emulator.

Needs Debian's packages `g++-aarch64-linux-gnu` and `qemu-user`.
"""

import shutil
import subprocess

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_rl.codegen.native_cell import NativeCell, _nested, unit_of
from mindspore_rl.platform import toolchain
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell
from tests.codegen.test_layers import GRU, LSTM, Attention, OneNumber, Pixels, _floats
from tests.codegen.units import graph_mode, leaves

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MAIN = """
#include <cstdio>
#include <vector>
extern "C" void parts_of_threads() __asm__("in_parts");
int main() {
  static const size_t sizes[] = {SIZES 0};
  std::vector<void *> data;
  for (size_t size : sizes)
    if (size) {
      char *bytes = (char *)aligned_alloc(64, (size + 63) / 64 * 64);
      if (fread(bytes, 1, size, stdin) != size) return 2;
      data.push_back(bytes);
    }
  void *functions[] = {(void *)parts_of_threads};
  char *memory = (char *)aligned_alloc(64, MEMORY);
  char *results = (char *)aligned_alloc(64, RESULTS);
  if (run(data.data(), memory, functions, results)) return 3;
  fwrite(results, 1, RESULTS, stdout);
  return 0;
}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason=f"there is no {COMPILER} or no {EMULATOR}",
    ),
]


class Derivative(nn.Cell):
    """The gradient of a network's squared output by its weights."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.function = ms.value_and_grad(self.loss, None, network.trainable_params())

    def loss(self, *inputs):
        return ops.square(self.network(*inputs)).sum()

    def construct(self, *inputs):
        return self.function(*inputs)


class Rows(nn.Cell):
    """Enough work for tiles of a batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(8, 64), nn.Tanh(), nn.Dense(64, 64), nn.ReLU())

    def construct(self, x):
        return ops.log_softmax(self.layers(x), -1)


def _emulated(unit, arrays, folder):
    """Returns the results of a unit on an emulated processor."""
    sizes = [-(-max(t.size, 1) * np.dtype(t.dtype).itemsize // 64) * 64 for t in unit.results]
    main = MAIN.replace("SIZES", "".join(f"{array.nbytes}, " for array in arrays))
    main = main.replace("MEMORY", str(unit.memory_bytes // 64 * 64 + 64))
    main = main.replace("RESULTS", str(sum(sizes)))
    flags = [flag for flag in toolchain.CELL_FLAGS if flag not in ("-shared", "-fPIC")]
    threads = toolchain.KERNELS.parent / "threads.cpp"
    (folder / "main.cpp").write_text(unit.text + main)
    subprocess.run(
        [COMPILER, *flags, "-std=c++20", "-static", "-pthread", f"-I{toolchain.KERNELS.parent}",
         f"-DMAX_THREADS={toolchain.MAX_THREADS}", folder / "main.cpp", threads,
         "-o", folder / "main", "-lm"],
        check=True,
    )  # fmt: skip
    data = b"".join(array.tobytes() for array in arrays)
    done = subprocess.run([EMULATOR, folder / "main"], input=data, capture_output=True, check=True)
    starts = np.cumsum([0, *sizes])
    return [
        np.frombuffer(done.stdout, t.dtype, t.size, start).reshape(t.shape)
        for t, start in zip(unit.results, starts, strict=False)
    ]


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (Rows, [_floats(512, 8)]),
        (OneNumber, [_floats(3, 4)]),
        (GRU, [_floats(3, 4), _floats(3, 8)]),
        (LSTM, [_floats(3, 4), _floats(3, 8), _floats(3, 8)]),
        (Attention, [_floats(2, 5, 8)]),
        (Pixels, [_floats(2, 3, 8, 8)]),
    ],
)
def test_another_processor_gives_the_same(network, inputs, tmp_path):
    cell = Derivative(network())
    with graph_mode():
        unit = unit_of(CompiledCell(cell).graph(*inputs))
    assert all(name.endswith(":in_parts") for name in unit.functions)
    parameters = {p.name: p for p in cell.get_parameters()}
    native = NativeCell(unit, toolchain.cell_library(unit.text, toolchain.level()), parameters)
    weights = [parameters[name].asnumpy() for name in unit.weights]
    emulated = _emulated(unit, [*inputs, *weights], tmp_path)
    wanted, found = leaves(native(*inputs)), leaves(_nested(unit.structure, emulated))
    assert len(wanted) > 2
    for one, other in zip(wanted, found, strict=True):
        largest = max(float(np.abs(one).max()), 1e-3)
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * largest)
