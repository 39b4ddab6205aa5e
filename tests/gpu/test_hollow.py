"""Whole jobs on MindSpore's GPU plug-in, without a GPU (see hollow.py).

They show that every cell compiles, with a kernel of the plug-in for every operator, and that ranks,
groups, copies and checkpoints work. Their numbers have no meaning.
"""

import itertools
import json
import shutil

import pytest

from mindspore_rl.platform import gpu
from tests.commands import msrl, python
from tests.gpu import hollow
from tests.tiers import quick

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(
        not all(map(shutil.which, ("cc", "nm"))), reason="needs a C compiler and nm"
    ),
]
ALGORITHMS = {
    "ppo": ["num_steps=8", "num_minibatches=2"],
    "a2c": [],
    "mappo": ["num_envs=8", "num_steps=5", "num_minibatches=1"],
    "sac": ["num_envs=2", "learning_starts=64", "batch_size=32"],
}
POLICIES = ("SingleLearnerFine", "MultipleLearners", "GPUOnly", "Environments", "Central")
CASES = [*itertools.product(("ppo", "a2c", "mappo"), POLICIES), ("sac", "MultipleLearners")]


@pytest.fixture(scope="module")
def cuda(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    hollow.build(folder)
    return folder


@pytest.fixture
def train(cuda, tmp_path):
    """Runs `msrl train` on GPUs. Returns: its exit code, its output and the run's folder."""

    def run(*arguments, gpus=1, **variables):
        words = ("--device", "gpu", "--total-steps", "256", "--run-dir", tmp_path / "run")
        job = msrl("train", *arguments, *words, env=hollow.environment(cuda, gpus) | variables)
        return job.returncode, job.stdout + job.stderr, tmp_path / "run"

    return run


def finished(code, text, run):
    assert code == 0, text
    plan = json.loads((run / "plan.json").read_text())
    assert plan["device"] == "GPU"
    assert len(list((run / "checkpoints").glob("*.npz"))) > 0
    return plan


@pytest.mark.slow
def test_a_job_on_one_gpu(train):
    code, text, run = train("ppo", "--policy", "GPUOnly", *ALGORITHMS["ppo"])
    finished(code, text, run)
    assert "this GPU is newer than MindSpore's kernels" in text


@pytest.mark.slow
def test_check_compares_what_a_gpu_computes(cuda):
    """The stubs compute nothing, and that is different."""
    words = ("--device", "gpu", "--policy", "GPUOnly", "--workers", "1", "--iterations", "1")
    job = msrl("check", "ppo", *words, env=hollow.environment(cuda, 1))
    assert job.returncode == 1, job.stderr
    assert "GPUOnly, 1 worker, mindspore cells: different" in job.stderr


@pytest.mark.slow
def test_fragments_of_different_kinds_share_a_gpu(train):
    arguments = ("ppo", "--policy", "SingleLearnerCoarse", "--env", "HalfCheetah-v4")
    finished(*train(*arguments, *ALGORITHMS["ppo"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "variables", "opened"),
    [(2, {}, ["0", "1"]), (8, {"CUDA_VISIBLE_DEVICES": "4,6"}, ["4", "6"])],
    ids=["all GPUs", "those that the user leaves"],
)
def test_replicas_on_two_gpus_form_a_group(cuda, train, gpus, variables, opened):
    (cuda / "opened.txt").unlink(missing_ok=True)
    arguments = ("docs/examples/reinforce.py", "--policy", "GPUOnly", "--workers", "2")
    plan = finished(*train(*arguments, gpus=gpus, **variables))  # a cell with three collectives
    assert len(plan["fragments"][0]["shares"]) == 2
    assert sorted((cuda / "opened.txt").read_text().split()) == opened


@pytest.mark.slow
def test_replicas_that_would_share_a_gpu_are_fused(train):
    code, text, run = train("a2c", "--policy", "MultipleLearners", "--workers", "2")
    plan = finished(code, text, run)
    assert len(plan["fragments"][0]["shares"]) == 1
    assert "2 workers would share GPUs: they are fused into 1" in text


@pytest.fixture
def hosts(tmp_path):
    """Makes a deployment file of two hosts, both this machine, each with some GPUs."""

    def make(gpus):
        file = tmp_path / "hosts.yaml"
        file.write_text(
            "hosts:\n"
            f"  - {{name: one, address: 127.0.0.1, gpus: {gpus}}}\n"
            f"  - {{name: two, address: 127.0.0.2, gpus: {gpus}}}\n"
            f"launcher: fork\npolicy: GPUOnly\nworkers: {2 * gpus}\n"
        )
        return str(file)

    return make


@pytest.mark.slow
def test_every_rank_of_two_hosts_has_a_gpu_of_its_own(cuda, train, hosts):
    (cuda / "opened.txt").unlink(missing_ok=True)
    plan = finished(*train("a2c", "--deployment", hosts(2), gpus=2))
    assert plan["hosts"] == ["one", "one", "two", "two"]
    assert sorted((cuda / "opened.txt").read_text().split()) == ["0", "0", "1", "1"]


@pytest.mark.slow
def test_a_host_has_fewer_gpus_than_its_file_says(train, hosts):
    code, text, _ = train("a2c", "--deployment", hosts(2))
    assert code == 2, text
    assert "2 ranks of a group on this host, but 1 GPU: each needs one of its own" in text


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "policy"), CASES)
def test_every_algorithm_under_every_policy(train, algorithm, policy):
    arguments = (algorithm, "--policy", policy, *ALGORITHMS[algorithm], "--workers", "2")
    finished(*train(*arguments, gpus=4))


A_CELL = """
import sys
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("GPU")
ms.set_context(mode=ms.GRAPH_MODE)


class Named(nn.Cell):
    def __init__(self, name):
        super().__init__()
        self.function = getattr(ops, name)

    def construct(self, x):
        return self.function(x)


for name in sys.argv[1:]:
    try:
        Named(name).compile(Tensor(np.ones((4, 4), np.float32)))
        print(name)
    except RuntimeError:
        pass
"""


def _with_the_plugin(cuda, file, *arguments, **more):
    """Runs a program that uses MindSpore's plug-in directly."""
    variables = hollow.environment(cuda, 1) | more
    wheels = (cuda / "wheels/nvidia").glob("*/lib")
    paths = [variables["LD_LIBRARY_PATH"], *wheels, gpu.plugin_folder()]
    variables["LD_LIBRARY_PATH"] = ":".join(map(str, paths))
    variables["CUDA_HOME"] = gpu.environment()["CUDA_HOME"]
    return python(file, *arguments, env=variables)


A_GATHER = """
import sys
from pathlib import Path
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.operator import TableGather
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table

ms.set_device("GPU")
ms.set_context(mode=ms.GRAPH_MODE)


class Cell(nn.Cell):
    def __init__(self, gather):
        super().__init__()
        self.gather = gather

    def construct(self, ids, first):
        return self.gather(ids, first)


spec = TableSpec((Column("obs", (4,), "float32"), Column("ended", (), "bool")), 8, length=5)
with Table.create(spec) as table:
    print(table.base, spec.header()["total_bytes"])
    try:
        cell = Cell(TableGather(table, 3))
    except ReplayError as error:
        print(error)
        sys.exit()
    found = cell(Tensor(np.zeros(6, np.int64)), Tensor(np.zeros(6, np.int32)))
    shapes = [array.asnumpy().shape for array in found]
    assert shapes == [(6, 3, 4), (6, 3), (6,)], shapes
"""


@pytest.mark.parametrize("most", quick(["", "1000"], 0))
def test_a_table_is_locked_for_the_gpu_until_it_is_closed(cuda, tmp_path, most):
    """The address and size of the memory, mapped (2) for every context (1)."""
    (tmp_path / "gather.py").write_text(A_GATHER)
    log = tmp_path / "log.txt"
    limit = {"HOLLOW_LOCKED": most} if most else {}
    job = _with_the_plugin(cuda, tmp_path / "gather.py", HOLLOW_LOG=str(log), **limit)
    assert job.returncode == 0, job.stderr
    (base, size), *told = (line.split() for line in job.stdout.splitlines())
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    mapped = [line for line in lines if line[0] in ("locked", "unlocked", "gathered")]
    if most:
        assert "cannot be page-locked for the GPU (CUDA error 2)" in " ".join(told[0])
        assert mapped == []
    else:
        locked, gathered, unlocked = mapped
        assert locked == ["locked", base, size, "3"]
        assert gathered == ["gathered", base, "6", "6"]
        assert unlocked[:2] == ["unlocked", base]


@pytest.mark.slow
def test_operators_said_to_lack_a_kernel_do(cuda, tmp_path):
    (tmp_path / "cell.py").write_text(A_CELL)
    job = _with_the_plugin(cuda, tmp_path / "cell.py", "tanh", *gpu.NO_KERNEL)
    assert job.stdout == "tanh\n", job.stderr


@pytest.mark.parametrize(
    ("call", "text"),
    quick(
        [
            ("ops.nan_to_num(obs)", "changed.py:{}: MindSpore has no kernel of ops.nan_to_num"),
            ("obs.nan_to_num()", "MindSpore has no kernel of NanToNum for the GPU"),
        ],
        0,
    ),
    ids=["before anything is started", "as its cell is compiled"],
)
def test_an_operator_without_a_kernel_is_named(train, tmp_path, call, text):
    source = (hollow.ROOT / "algorithms" / "a2c.py").read_text()
    line = "self.network.evaluate(obs"
    before, after = source.split(line)
    file = tmp_path / "changed.py"
    file.write_text(f"{before}{line.replace('obs', call)}{after}")
    code, printed, _ = train(str(file), "--policy", "MultipleLearners")
    assert code == 2, printed
    assert text.format(before.count("\n") + 1) in printed
