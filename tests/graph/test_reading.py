"""What does not compile and what draws random numbers is told when the graph is built."""

import cProfile
import random
import re
import sys

import pytest

from mindspore_rl.errors import ProgramError
from mindspore_rl.graph.probe.front_end import SOURCE
from mindspore_rl.purity.calls import watch
from tests.graph.programs import analyse_with

ACT = """
import random
import time
import numpy as np

def luck(x):
    return x * float(np.random.randint(2) >= 0)

class Odd(Act):
    def __init__(self, net):
        super().__init__(net)
        self.n, self.generator = 0, np.random.default_rng(1)

    def act(self, obs, noise):
        {line}
        return super().act(obs, noise)

class Learn("""


def _refused(folder, line):
    """What is said of a line in `act`, and the number of that line."""
    changed = [("\nclass Learn(", ACT.format(line=line)), ("= Act(net)", "= Odd(net)")]
    with pytest.raises(ProgramError) as caught:
        analyse_with(folder, "GPUOnly", 1, remove=changed)
    text = str(caught.value)
    assert SOURCE not in text
    assert text.startswith(f"{folder}/program_")
    return text


@pytest.mark.parametrize(
    "line",
    [
        "obs = obs + float(obs.asnumpy().mean())",
        "self.n += 1",
        "obs = obs + float(np.array(obs).sum())",
    ],
)
def test_what_does_not_compile_is_told_with_its_line(line, tmp_path):
    text = _refused(tmp_path, line)
    assert "agent_act#1 cannot be compiled" in text
    assert re.search(rf"raised at .*program_\w+\.py:\d+: {re.escape(line)}", text)


def test_glue_that_does_not_compile(tmp_path):
    line = "target = reward * float(reward.asnumpy().size)"
    with pytest.raises(ProgramError, match="glue#1 cannot be compiled.*asnumpy") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, learn=line)
    assert str(caught.value).split("\n")[0].endswith(line)


def test_pythons_max_of_an_array_is_told_what_to_take_instead(tmp_path):
    line = "target = reward * max(0.5, msrl.mean(reward))"
    with pytest.raises(ProgramError, match="ops.maximum in place of max"):
        analyse_with(tmp_path, "GPUOnly", 1, learn=line)


@pytest.mark.parametrize(
    ("line", "drawn"),
    [
        ("obs = luck(obs)", r"numpy\.random\S* at .*program_\w+\.py:\d+:"),
        ("obs = obs * float(self.generator.integers(1, 2))", "numpy.random"),
        ("obs = obs * (random.gauss(0.0, 1.0) < 1e9)", "random.gauss at .*program_"),
        ("obs = obs * (time.time() > 0.0)", "time.time"),
        ("obs = ops.where(ops.rand_like(obs) < 2.0, obs, -obs)", "draws from UniformReal"),
        ("obs = ops.dropout(obs, 0.0)", "draws from Dropout"),
    ],
)
def test_random_numbers_are_found_whatever_they_are(line, drawn, tmp_path):
    """Each of these gives the same every time."""
    text = _refused(tmp_path, line)
    assert re.search(drawn, text)
    assert "random numbers come as the noise of `act`" in text


def test_watching_leaves_a_profiler_as_it_was():
    profiler = cProfile.Profile()
    profiler.enable()
    with watch() as found:
        random.random()
    try:
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    assert len(found.impure) == 1


HELPERS = """
import functools
import os

ACTS = [0.0]

def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2.0 * function(*args)
    return wrapper

@doubled
def decorated(x):
    return x + 1.0

def counted(x):
    ACTS[0] += 1.0
    return x * (ACTS[0] > 0.0)

class Learn("""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("decorated(reward)", "calls decorated by its decorator of .*program_"),
        ("counted(reward)", r"changes .*\.ACTS\[0\]: Python keeps that"),
        ("reward * (os.getpid() > 0)", "os.getpid at .*another in each process"),
    ],
)
def test_what_is_no_function_of_its_arguments_is_refused(call, told, tmp_path):
    """Uncompiled, where MindSpore's parser refuses nothing."""
    line = f"target = {call}"
    with pytest.raises(ProgramError, match=told) as caught:
        analyse_with(
            tmp_path, "GPUOnly", 1, [("\nclass Learn(", HELPERS)], compiled=False, learn=line
        )
    assert str(caught.value).split("\n")[0].endswith(line)


def test_state_that_python_keeps_of_an_update(tmp_path):
    """Nothing sends it to other ranks, and `learn` was read once."""
    counting = """
    def apply(self, grads):
        self.calls["n"] += 1
        super().apply(grads)

    def learn("""
    changed = [
        ("\n    def learn(", counting),
        ("Learn(net, config)\n", "Learn(net, config)\n        self.learner.calls = dict(n=0)\n"),
    ]
    with pytest.raises(ProgramError, match=r"update#1 changes trainer.learner.calls\['n'\]"):
        analyse_with(tmp_path, "GPUOnly", 1, changed, compiled=False)


@pytest.mark.parametrize("where", ["\n    def learn(", "\n    def train("])
def test_decorators_of_what_is_read_are_refused(where, tmp_path):
    changed = [("\nclass Learn(", HELPERS), (where, f"\n    @doubled{where}")]
    with pytest.raises(ProgramError, match="decorator of `(learn|train)`, which is read") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, changed)
    assert re.match(r".*program_\w+\.py:\d+: ", str(caught.value))
