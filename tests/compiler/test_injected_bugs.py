"""Tests must detect the classic mistakes of distributed learning, injected into generated code."""

import dataclasses
import re

import pytest

from mindspore_rl.jobs import registry
from mindspore_rl.policy import Schedule
from tests.compiler import inproc
from tests.compiler.programs import program_with
from tests.compiler.test_programs import SCATTERED
from tests.tiers import quick

SUM = r"(gradient_function\(.*?, )(\d+)\)"
LOCAL = "RandomTables(w.seed, range(len(w.env_indices)), w.agents).uniform"
RUN = "from mindspore_rl.runtime.rank.noise_tables import RandomTables\n\n\ndef run(w):"
BUGS = {
    # Each replica divides by its own number of samples, and the means are averaged.
    "mean of means": (SUM, r"\1\2 // 8 * len(w.env_indices) * 3)", "gradient"),
    "gradient counted twice": (SUM, r"\1\2 / 3)", "gradient"),
    # Every replica numbers its environments from 0.
    "noise by local index": (r"def run\(w\):", f"{RUN}\n    w.noise = {LOCAL}", "action"),
}
"""What is replaced in the source of a fragment, by what, and the mark where that shows."""


@pytest.fixture(scope="module")
def job():
    return inproc.request(inproc.PROGRAMS / "two_phase.py", "MultipleLearners", 3)


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    return inproc.run_reference(job, tmp_path_factory.mktemp("reference"), once=True)


def test_nothing_injected(job, reference, tmp_path):
    assert inproc.run_and_compare(job, reference, tmp_path) == []


@pytest.mark.parametrize(("old", "new", "mark"), BUGS.values(), ids=BUGS)
def test_injected_bug_shows(old, new, mark, job, reference, tmp_path):
    wrong = inproc.run_and_compare(job, reference, tmp_path, lambda folder: spoil(folder, old, new))
    assert any(f"boundary:{mark}" in line for line in wrong)


def spoil(folder, old, new):
    """Replaces text in the source of the only fragment."""
    (file,) = (folder / "fragments").glob("*.py")
    source = file.read_text()
    spoilt = re.sub(old, new, source)
    assert spoilt != source
    file.write_text(spoilt)


ACTED = "(msrl.agent_act(obs) + msrl.env_index() // 3) % 2"
BY_NUMBER = {
    "remove": [("msrl.agent_act(obs)", ACTED)],
    "loop": "reward = reward - 0.1 * msrl.env_index()",
    "learn": "target = reward * (1.0 + msrl.env_index()) + msrl.mean(msrl.env_index())",
}
IN_GRAPH = "graph:CartPole-v1"
FINE = registry.load_policy(registry.find_policy("SingleLearnerFine"))
IN_CHUNKS = dataclasses.replace(FINE, name="InChunks", schedule=Schedule(chunks=2))


@pytest.fixture(scope="module")
def by_number(tmp_path_factory):
    """A program that uses the numbers of its environments, and its reference in each of them."""
    folder = tmp_path_factory.mktemp("by_number")
    file, known = program_with(folder, **BY_NUMBER), {}

    def get(policy, workers, env):
        job = inproc.request(file, policy, workers, num_steps=4, env=env)
        if env not in known:
            known[env] = inproc.run_reference(job, folder / env.replace(":", "_"), once=True)
        return job, known[env]

    return get


@pytest.mark.parametrize(
    ("policy", "workers", "env", "compiled"),
    quick(
        [
            (SCATTERED, 3, "CartPole-v1", ""),
            ("GPUOnly", 3, IN_GRAPH, ""),
            ("MultipleLearners", 3, "CartPole-v1", ""),
            ("SingleLearnerCoarse", 3, "CartPole-v1", ""),
            ("Central", 3, "CartPole-v1", ""),
            (IN_CHUNKS, 2, "CartPole-v1", ""),
            ("GPUOnly", 1, IN_GRAPH, "native"),
            ("GPUOnly", 1, IN_GRAPH, "mindspore"),
            ("MultipleLearners", 1, "CartPole-v1", "native"),
        ],
        2,
    ),
    ids=lambda part: getattr(part, "name", part),
)
def test_an_environment_has_one_number_under_every_policy(
    policy, workers, env, compiled, by_number, tmp_path
):
    job, reference = by_number(policy, workers, env)
    if compiled:
        job = dataclasses.replace(job, compiled=True, cells=compiled)
    assert inproc.run_and_compare(job, reference, tmp_path) == []


@pytest.mark.parametrize("env", quick(["CartPole-v1", IN_GRAPH], 0))
def test_numbers_by_replica_show(env, by_number, tmp_path):
    """Every replica numbers its environments from 0."""
    number = r"(w\.env_index\(\)|self\.env_index_\d+(?= \*))"
    job, reference = by_number("MultipleLearners", 3, env)
    wrong = inproc.run_and_compare(
        job, reference, tmp_path, lambda folder: spoil(folder, number, r"\1 % 3")
    )
    assert any("boundary:action" in line for line in wrong)
