"""Detection of GPUs, with a stub of the driver's library, and `msrl doctor`."""

import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from mindspore_rl.cli import doctor
from mindspore_rl.cli.main import main
from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import gpu, resources
from mindspore_rl.runtime.coordinator import reaper

DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return ERROR; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  strcpy(name, device ? "Second" : "First");
  return 0;
}
"""


@pytest.fixture
def ask(tmp_path):
    """Evaluates an expression with a driver of this kind installed."""

    def evaluate(expression, error=0, count=2, version=12040, **variables):
        source = tmp_path / "driver.c"
        source.write_text(DRIVER)
        subprocess.run(
            ["cc", f"-DERROR={error}", f"-DCOUNT={count}", f"-DVERSION={version}"]
            + ["-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1"],
            check=True,
        )
        job = subprocess.run(
            [sys.executable, "-c", f"from mindspore_rl.platform import gpu; print({expression})"],
            env={
                **{k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"},
                "LD_LIBRARY_PATH": str(tmp_path),
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return job.stdout.strip() or job.stderr.strip().splitlines()[-1]

    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return evaluate


def test_a_driver_tells_its_gpus(ask):
    assert ask("gpu.driver()") == "Driver(cuda='12.4', gpus=('First', 'Second'))"


@pytest.mark.parametrize(
    ("error", "version", "text"),
    [
        (35, 12040, "no NVIDIA driver answers here: cuInit gives CUDA error 35"),
        (0, 11040, "the NVIDIA driver is for CUDA 11.4, expected 11.8 or newer"),
        (100, 12040, "the NVIDIA driver has no GPU for this process (CUDA_VISIBLE_DEVICES: '7')"),
    ],
)
def test_a_driver_that_cannot_serve(ask, error, version, text):
    found = ask("gpu.driver()", error, version=version, CUDA_VISIBLE_DEVICES="7")
    assert found == f"mindspore_rl.errors.MsrlError: {text}"


@pytest.mark.parametrize(
    ("number", "visible", "taken"), [(1, "", "1"), (1, "4,6", "6"), (0, "4,6", "4"), (3, "", "1")]
)
def test_a_rank_takes_the_gpu_of_its_number(ask, number, visible, taken):
    expression = f"(gpu.take({number}, 2), __import__('os').environ['CUDA_VISIBLE_DEVICES'])[1]"
    variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    assert ask(expression, **variables) == taken


def test_more_replicas_than_gpus_are_refused(ask):
    found = ask("gpu.take(2, 3)")
    assert "3 ranks of a group on this host, but 2 GPU" in found


def test_a_gpu_without_its_libraries_is_not_taken(ask):
    if not gpu.missing_wheels():
        pytest.skip("the extra gpu is installed")
    assert "nvidia-cublas-cu11" in ask("gpu.choose('gpu')")
    assert ask("gpu.choose('auto')").startswith("('CPU', \"nvidia-cublas-cu11")


def no_driver():
    raise MsrlError("no NVIDIA driver answers here: made up")


def test_without_a_driver(monkeypatch):
    monkeypatch.setattr(gpu, "driver", no_driver)
    assert gpu.choose("cpu") == ("CPU", "")
    assert gpu.choose("auto") == ("CPU", "no NVIDIA driver answers here: made up")
    with pytest.raises(MsrlError, match=r"device=gpu: no NVIDIA driver .*; use --device cpu"):
        gpu.choose("gpu")


def test_a_run_that_wants_a_gpu_ends_with_one_line(monkeypatch, refused, tmp_path):
    monkeypatch.setattr(gpu, "driver", no_driver)
    assert refused("train", "ppo", "--device", "gpu", "--run-dir", tmp_path / "run") == (
        "msrl: device=gpu: no NVIDIA driver answers here: made up; use --device cpu\n"
    )
    assert not (tmp_path / "run").exists()


def test_what_the_plug_in_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    given = gpu.environment()
    paths = given["LD_LIBRARY_PATH"].split(":")
    assert (paths[0], paths[-1]) == (str(gpu.plugin_folder()), "/mine")
    nvcc = subprocess.run(
        [f"{given['CUDA_HOME']}/bin/nvcc", "--version"], capture_output=True, text=True, check=True
    )
    assert "release 11.6" in nvcc.stdout
    monkeypatch.setenv("LD_LIBRARY_PATH", given["LD_LIBRARY_PATH"])
    assert gpu.environment() == given


def test_a_cache_that_cannot_be_written_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert gpu.environment()["CUDA_HOME"].startswith(str(tmp_path / "temporary"))


def test_doctor_finds_what_trains(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    words = ("mindspore", "mpiexec", "C++ compiler", "/dev/shm", "host name", "GPU driver", "NCCL")
    assert [word for word in words if word not in text] == []


def test_doctor_looks_at_what_the_shell_gives(capsys, monkeypatch):
    monkeypatch.setenv("PMIX_NAMESPACE", "1")
    monkeypatch.setattr(resources, "descriptors", lambda: 40)
    monkeypatch.setattr(resources, "address_space", lambda: 1 << 30)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    words = ("40 for a process", "ulimit -n 1024", "1.0 GiB for", "ulimit -v", "PMIX_NAMESPACE")
    assert [word for word in words if word not in text] == []


def test_doctor_says_how_to_mend(capsys, monkeypatch, tmp_path):
    (tmp_path / "mpich_shm_0123_0").write_text("")
    monkeypatch.setattr(reaper, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(doctor, "SHARED_BYTES", 1 << 60)
    monkeypatch.setitem(doctor.OPTIONAL, "nowhere", "mujoco")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert f"rm {tmp_path}/mpich_shm_0123_0" in text
    assert "pip install '.[mujoco]'" in text
    assert "MISSING" in text
