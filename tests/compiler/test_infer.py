"""Results of a probe run: shapes, the axis of environments, rows that depend on other rows."""

import re
from dataclasses import replace

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.compiler.analysis import infer, row_trials
from mindspore_rl.compiler.ir.ir import Op, walk
from mindspore_rl.compiler.pipeline import JobRequest, analyse
from mindspore_rl.errors import PolicyError, ProgramError
from mindspore_rl.jobs import registry
from mindspore_rl.plan.value import Value
from tests.compiler.programs import analyse_with, program_with


def test_a_program_is_examined_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = program_with(tmp_path)
    policy = registry.load_policy(registry.find_policy("MultipleLearners"))
    config = programs.trainer_class(file).Config(num_steps=4)
    first = analyse(JobRequest(file, policy, config, 2)).program
    monkeypatch.setattr(infer, "Probe", None)
    assert analyse(JobRequest(file, policy, config, 2)).program == first
    more = analyse(JobRequest(file, policy, replace(config, num_envs=16), 2)).program
    assert more.values["obs"].shape[0] == 16
    with pytest.raises(TypeError):  # another configuration is probed
        analyse(JobRequest(file, policy, replace(config, num_steps=5), 2))
    for damaged in (tmp_path / "cache").rglob("*.pickle"):
        damaged.write_bytes(b"nothing")
    with pytest.raises(TypeError):
        analyse(JobRequest(file, policy, config, 2))


def _one_replica(folder, line):
    return analyse_with(folder, "GPUOnly", 1, learn=line).program


@pytest.mark.parametrize(
    "line",
    [
        "target = reward.reshape((7, 3))",
        # MindSpore raises this exception later, at another operation.
        "target = ops.gather_elements(reward, 0, 1000 * ops.ones_like(action))",
    ],
)
def test_a_failure_names_its_line(line, tmp_path):
    with pytest.raises(ProgramError) as caught:
        _one_replica(tmp_path, f"before = reward + 1.0\n{line}\nafter = before + target")
    first = str(caught.value).split("\n")[0]
    assert re.match(r".*program_\w+\.py:\d+: ", first)
    assert first.endswith(line)
    assert "failed on probe data" in str(caught.value)


def test_an_operator_that_mindspore_lacks_is_named(tmp_path):
    """MindSpore's text begins with an empty line and a ruler, which was all that was told."""
    with pytest.raises(ProgramError, match=r"Unsupported op \[Einsum\].*\n.*\n.*products and sums"):
        _one_replica(tmp_path, 'target = ops.einsum("tb,tb->tb", reward, reward)')


def test_a_loss_that_is_a_mean_is_refused_at_its_line(tmp_path):
    """Of one replica, too, whose gradient would be divided by the number of samples once more."""
    head = "class Learn(BaseLearner):\n"
    line = "return leaves(self.loss(*given))[0].mean()"
    method = f"{head}    def mean_of(self, *given):\n        {line}\n\n"
    change = ((head, method), ("gradient(self.loss", "gradient(self.mean_of"))
    imported = "from mindspore_rl.rl.losses import clip_by_global_norm\n"
    more = ((imported, f"{imported}from mindspore_rl.rl.operators import leaves\n"),)
    with pytest.raises(ProgramError, match="expected one of each sample") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, remove=(*change, *more))
    assert str(caught.value).split("\n")[0].endswith(line)


@pytest.mark.parametrize(
    "code",
    [
        "for _, m in msrl.minibatches(2, (obs, both)):\n    target = reward",
        "target = target * msrl.mean(reward, both)",
        "target = target * msrl.max(both)",
        "msrl.env_step(both)",
    ],
)
def test_an_opaque_tuple_is_no_array(code, tmp_path):
    pair = (
        "    def learn(self",
        "    def pair(self, x):\n        return x, x\n\n    def learn(self",
    )
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, learn=f"both = self.pair(reward)\n{code}", remove=[pair])
    place, what = str(caught.value).split("\n")
    assert re.match(r".*program_\w+\.py:\d+: ", place)
    assert place.endswith(code.splitlines()[0])
    assert "takes arrays, and `both` is ([4, 4] float32, [4, 4] float32): unpack it" in what


@pytest.mark.parametrize("keep", [2, 3, -1, 0.5])
def test_axes_that_a_mean_cannot_keep(keep, tmp_path):
    with pytest.raises(ProgramError, match=rf"keep={keep} of \[4, 4\].*expected 0 to 1"):
        _one_replica(tmp_path, f"target = reward - msrl.mean(reward, keep={keep})")


@pytest.mark.parametrize("least", [6, 7])  # probes have 4 and 6 environments, the job has 8
@pytest.mark.parametrize(
    "line",
    [
        "if self.config.num_envs >= {}:\n    more = reward + 1.0\n    target = more * 2.0",
        "target = reward - reward.mean() if self.config.num_envs >= {} else reward - 0.5",
        "target = reward\nfor i in range(2 if self.config.num_envs >= {} else 1):\n"
        "    target = target * 0.5",
    ],
)
def test_a_program_that_depends_on_num_envs_is_refused(line, least, tmp_path):
    with pytest.raises(ProgramError, match="may not depend on num_envs") as caught:
        _one_replica(tmp_path, line.format(least))
    assert re.match(r".*program_\w+\.py:\d+: ", str(caught.value))


def test_numbers_may_depend_on_num_envs(tmp_path):
    _one_replica(tmp_path, "target = reward * (2.0 if self.config.num_envs >= 7 else 0.5)")


def test_records_may_be_counted_by_num_envs(tmp_path):
    each = {"8 * self.config.num_envs": 8, "64": 8, "16": 2}
    for count, wanted in each.items():
        line = f"target = reward + 0.0 * msrl.uniform({count}, 3).mean()"
        program = _one_replica(tmp_path, line)
        (size,) = (
            op.attr["size"]
            for op, _ in walk(program.body)
            if op.kind == "noise" and op.attr["owner"] == "replay"
        )
        assert size == 3 * wanted


EIGHTHS = """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Eighths(Config):
    def __post_init__(self):
        if self.num_envs % 8:
            raise ValueError(f"{self.num_envs} environments")

class Algorithm"""


def test_the_config_says_with_how_many_environments_a_program_is_analysed(tmp_path):
    changed = [("\nclass Algorithm", EIGHTHS), ("    Config = Config", "    Config = Eighths")]
    values = analyse_with(tmp_path, remove=changed, compiled=False).program.values
    assert values["reward"].shape == (8,)


def test_rows_that_lie_apart_are_told_how_to_lie_side_by_side(tmp_path):
    line = """
        rows = ops.stack((reward.reshape(-1), reward.reshape(-1)), 1)
        flat = rows.reshape((-1, 1))
        target = flat.reshape((*reward.shape, 2)).sum(2)
    """
    with pytest.raises(PolicyError, match=r"do not lie side by side.*swapaxes") as caught:
        analyse_with(tmp_path, learn=line)
    assert "msrl.mean" not in str(caught.value)


def test_rounding_is_that_of_the_largest_terms():
    assert row_trials._close(np.array([1e4, 1e-3]), np.array([1e4, 2e-3]))
    assert not row_trials._close(np.array([1.0, 1e-3]), np.array([1.0, 2e-3]))
    assert row_trials._close(np.array([np.inf, np.nan, True]), np.array([np.inf, np.nan, True]))


@pytest.mark.parametrize(
    ("odd", "evidence"), [({2}, ""), ({2, 4, 6, 8, 10, 12}, row_trials.RANDOM)]
)
def test_what_an_operation_gives_but_once_is_no_evidence(odd, evidence):
    calls = []

    def evaluate(op, inputs):
        calls.append(op)
        return (Tensor(inputs["x"].asnumpy() + float(len(calls) in odd)),)

    op = Op("glue#1", "glue", ("y",), ("x + 0",), ("x",), where=None)
    trials = row_trials.RowTrials(
        evaluate, row_trials.environment_rows(4), np.random.default_rng(0)
    )
    values = {"x": Value((4,), "float32", axis=0)}
    assert trials.evidence(op, {"x": Tensor(np.arange(4, dtype=np.float32))}, values) == evidence


def test_findings_are_those_of_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = registry.find_algorithm("a2c")
    policy = registry.load_policy(registry.find_policy("MultipleLearners"))
    job = JobRequest(file, policy, programs.trainer_class(file).Config())
    here = analyse(job).program
    monkeypatch.chdir(tmp_path)
    assert analyse(job).program.values == here.values


def test_a_program_that_keeps_nothing_in_python_is_evaluated_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = []
    monkeypatch.setattr(
        infer.WatchfulProbe, "_look_for_changes", lambda probe, before: again.append(before)
    )
    analyse_with(tmp_path)
    assert again == []
