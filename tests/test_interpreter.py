"""Child processes import nothing that is in the working folder by accident."""

import os
import subprocess
import sys

import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import interpreter, nvrtc, toolchain
from mindspore_rl.runtime.coordinator.launch import Commands

VERSIONS = [(3, 10), *([(3, 11)] if sys.version_info >= (3, 11) else [])]
SAID = "import json, sys; print(json.__file__, __name__, sys.argv[1:])"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with files named like the modules that processes import first."""
    for name in ("numpy", "json", "runpy", "ctypes", "mindspore", "mindspore_rl"):
        (tmp_path / f"{name}.py").write_text("open('trap', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **interpreter.environment()}
    return subprocess.run(words, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("option", ["-m", "-c"])
def test_a_module_of_the_working_folder_stands_in_for_none(folder, monkeypatch, version, option):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "own.py").write_text(SAID)
    monkeypatch.setenv("PYTHONPATH", str(folder / "elsewhere"))  # the user's, unchanged
    what = "own" if option == "-m" else SAID
    found = run(*interpreter.command(option, what, "a", "b", version=version)).stdout
    assert found.endswith("json/__init__.py __main__ ['a', 'b']\n")
    assert not (folder / "trap").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_coordinator_finds_there_is_found_last(folder, monkeypatch, version):
    (folder / "my_environments.py").touch()
    code = (
        "from mindspore_rl.platform import interpreter; interpreter.look_last()\n"
        "import json, importlib.util as util; print(util.find_spec('my_environments') is not None)"
    )
    command = interpreter.command("-c", code, version=version)
    assert run(*command).stdout == "False\n"
    monkeypatch.syspath_prepend(str(folder))
    assert run(*command).stdout == "True\n"
    assert not (folder / "trap").exists()


def test_ranks_and_the_scheduler_are_started_so(folder):
    commands = Commands()
    assert "no such device" in run(*commands.scheduler, "no such device").stderr
    assert "a worker is started by `msrl train`" in run(*commands.worker).stderr
    assert not (folder / "trap").exists()


def test_nor_does_a_compiler_find_its_headers_there(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "kernels.h").write_text("#error planted\n")
    text = '#include "kernels.h"\nextern "C" int one() { return 1; }\n'
    assert toolchain.cell_library(text, 0).is_file()
    with pytest.raises(MsrlError):
        nvrtc.compile_kernels(folder / "none.cu", folder / "none.ptx", [])
    assert not (folder / "trap").exists()


def test_mindspore_is_imported_without_what_it_needs_rarely():
    code = (
        "import sys\nfrom mindspore_rl.platform import interpreter\n"
        "interpreter.hasten_mindspore()\nimport numpy as np, mindspore as ms\n"
        "x = ms.Tensor(np.ones((2, 2), np.float32))\nprint(ms.ops.matmul(x, x).asnumpy().sum())\n"
        "rare = ('mindspore.ops._op_impl.aicpu.', 'scipy', 'tqdm')\n"
        "print([m for m in sys.modules if m.startswith(rare)])\n"
        "from mindspore.ops._op_impl.aicpu import abs\n"  # whoever asks for one has it
        "metric = ms.train.metrics.HausdorffDistance()\n"
        "metric.update(x, x, 1)\nprint(metric.eval(), 'scipy.ndimage' in sys.modules)\n"
    )
    done = run(*interpreter.command("-c", code))
    assert (done.returncode, done.stdout) == (0, "8.0\n[]\n0.0 True\n")
