"""The axis of agents: its place, operations that combine agents, and shares of agents."""

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler.partition.replicate import agent_shares
from mindspore_rl.compiler.pipeline import JobRequest, analyse
from mindspore_rl.errors import PolicyError, ProgramError
from mindspore_rl.jobs import registry
from tests.compiler.inproc import PROGRAMS
from tests.tiers import quick


def analysed(policy, workers, file=PROGRAMS / "teams.py"):
    chosen = registry.load_policy(registry.find_policy(policy))
    return analyse(JobRequest(file, chosen, programs.trainer_class(file).Config(), workers))


def changed(folder, old, new):
    """Returns the program with one line replaced."""
    text = (PROGRAMS / "teams.py").read_text()
    assert text.count(old) == 1
    file = folder / f"teams_{folder.name.replace('-', '_')}.py"
    file.write_text(text.replace(old, new))
    return file


@pytest.mark.parametrize(
    ("teams", "replicas", "sizes"),
    [
        ((3,), 1, [3]),
        ((3,), 2, [2, 1]),
        ((3, 1), 1, [4]),
        ((3, 1), 2, [3, 1]),
        ((3, 1), 3, [2, 1, 1]),
        ((2, 5, 1), 5, [2, 2, 2, 1, 1]),
    ],
)
def test_shares_stay_within_teams(teams, replicas, sizes):
    shares = agent_shares(teams, replicas)
    assert [len(share) for share in shares] == sizes
    assert [agent for share in shares for agent in share] == list(range(sum(teams)))
    team_of = [team for team, size in enumerate(teams) for _ in range(size)]
    assert replicas == 1 or all(len({team_of[agent] for agent in share}) == 1 for share in shares)


def test_more_replicas_than_agents():
    with pytest.raises(PolicyError, match="5 replicas of agent for 4 agents"):
        analysed("Environments", 5)


def test_a_split_by_agent_alone_needs_several(tmp_path):
    policy = tmp_path / "by_agent.py"
    policy.write_text(
        (registry.find_policy("Environments").read_text()).replace(
            'sharded=("agent", "env")', 'sharded="agent"'
        )
    )
    with pytest.raises(PolicyError, match="splits agent by agent, and the environment has one"):
        analysed(str(policy), 2, registry.find_algorithm("a2c"))


MIXED = {
    "an actor": ("return self.policy(obs)", "return self.policy(obs - obs.mean(-2, True))"),
    "a loss": (
        "categorical_log_prob(self.net.logits(obs), action) * advantage",
        "categorical_log_prob(self.net.logits(obs), action) * advantage.sum(-1, True)",
    ),
    "an order": ("advantage = reward +", "advantage = ops.flip(reward, (2,)) +"),
    "a truth value": (
        "advantage = reward +",
        "advantage = (ops.amax(reward, -1, True) > 6e3).astype('float32') + reward +",
    ),
    "what all have": ("advantage = reward +", "advantage = 0.0 * rewards + reward +"),
}


@pytest.mark.parametrize("case", quick(MIXED, 3))
def test_what_mixes_agents_is_refused_where_they_are_split(case, tmp_path):
    file = changed(tmp_path, *MIXED[case])
    told = r"splits agents over 3 replicas(.|\n)*teams_\w+\.py:\d+(.|\n)*--policy MultipleLearners"
    with pytest.raises(PolicyError, match=told) as caught:
        analysed("Environments", 3, file)
    in_function = case in ("an actor", "a loss")
    assert ('msrl.boundary("state", msrl.joint(reward' in str(caught.value)) != in_function
    analysed("MultipleLearners", 3, file)


BOTH = 'msrl.boundary("state", (msrl.joint(obs), msrl.joint(reward)))'
INSERT = "msrl.replay_insert(*values)"
KEPT = 'msrl.replay_insert(obs, keep=60, into="more")\n                '
REFUSED = {
    # A checkpoint has the records of all agents; such a rank could not take it up.
    "kept records of some agents": (
        *(INSERT, f"{KEPT}{INSERT}"),
        r"`obs` is kept(.|\n)*teams_\w+\.py:\d+(.|\n)*--policy MultipleLearners",
    ),
    "a joint state without its mark": (BOTH, BOTH[23:-1], r'msrl.boundary\("state", ...\)'),
    "a mean that keeps agents": (
        *("- msrl.mean(advantage))", "- msrl.mean(advantage, keep=1))"),
        "keeps the axis of agents",
    ),
    "joint actions with their mark": (
        *("msrl.joint(reward)", "msrl.joint(action)"),
        "`action` is made where the agents are, not where",
    ),
}


@pytest.mark.parametrize(("old", "new", "told"), quick(REFUSED.values(), 1), ids=REFUSED)
def test_refused_where_agents_are_split(old, new, told, tmp_path):
    with pytest.raises(PolicyError, match=told):
        analysed("Environments", 3, changed(tmp_path, old, new))


def test_joint_of_something_else(tmp_path):
    file = changed(tmp_path, "msrl.joint(reward)", "msrl.joint(terminated)")
    with pytest.raises(ProgramError, match=r"expected \[num_envs, agents, ...\] = \[4, 4\]"):
        analysed("MultipleLearners", 1, file)
