"""Divisions by agent give the reference's numbers with any other cuts (design, section 5)."""

import pytest

from mindspore_rl.jobs import registry
from mindspore_rl.policy import Cut, DistributionPolicy, FragmentRule
from tests.compiler import inproc
from tests.compiler.test_programs import SCATTERED
from tests.multiprocess import theorem
from tests.tiers import quick

CROSSED = DistributionPolicy(
    "CrossedTeams",
    "actors and gradients by agent, environments and replay by environment",
    (
        FragmentRule("e", ("environment",), 2, "env"),
        FragmentRule("a", ("actor",), 3, "agent"),
        FragmentRule("r", ("replay",), 2, "env"),
        FragmentRule("g", ("gradient",), 2, "agent"),
        FragmentRule("u", ("update",)),
    ),
    (*SCATTERED.cuts, Cut("state", "environment", "replay", optional=True)),
)
TEAMS = inproc.PROGRAMS / "teams.py"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    job = inproc.request(TEAMS, "Environments", 1)
    return inproc.run_reference(job, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(
    ("policy", "workers"),
    quick([("Environments", 3), (CROSSED, 1), ("MultipleLearners", 3)], 0),
    ids=lambda v: getattr(v, "name", v),
)
def test_equals_the_reference(policy, workers, reference, tmp_path):
    job = inproc.request(TEAMS, policy, workers)
    assert inproc.run_and_compare(job, reference, tmp_path) == []
    last = sorted((tmp_path / "checkpoints").glob("*"))[-1]
    assert theorem.compare_states(last, reference.checkpoints[-1], "variables/") == []


@pytest.mark.slow
def test_a_number_of_an_environment_is_that_of_all_its_agents(tmp_path):
    file, line = tmp_path / "numbered.py", "action = msrl.agent_act(obs)"
    shifted = "action = (action + ops.expand_dims(msrl.env_index(), -1)) % 2"
    text = TEAMS.read_text()
    assert line in text
    file.write_text(text.replace(line, f"{line}\n                {shifted}"))
    job = inproc.request(file, "Environments", 3)
    assert inproc.differences(job, tmp_path) == []


def test_noise_by_local_agent_shows(reference, tmp_path):
    """Every replica numbers its agents from 0."""

    def spoil(folder):
        file = folder / "fragments" / "agent.py"
        source = file.read_text()
        file.write_text(
            source.replace(
                "def run(w):",
                "def run(w):\n    from mindspore_rl.rl.random import Agents\n"
                "    w.agents = Agents(range(len(w.agents.share)), w.agents.count)",
                1,
            )
        )

    job = inproc.request(TEAMS, "Environments", 2)
    wrong = inproc.run_and_compare(job, reference, tmp_path, spoil)
    assert any("boundary:action" in line for line in wrong)


@pytest.mark.slow
def test_chunks_of_environments_and_shares_of_agents(tmp_path):
    env = "pettingzoo:mpe2.simple_spread_v3"
    job = inproc.request(TEAMS, "Environments", 2, {"chunks": 2}, env=env)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("environment", quick(["graph:simple_spread_v3", "graph:simple_tag_v3"], 1))
def test_mappo_by_agent(environment, tmp_path):
    job = inproc.request(
        registry.find_algorithm("mappo"), "Environments", 3, env=environment, num_envs=6,
        num_steps=8, num_minibatches=2, update_epochs=2,
    )  # fmt: skip
    assert inproc.differences(job, tmp_path) == []
