"""Programs whose results would depend on the number of replicas are refused, with the line."""

import dataclasses
import re

import pytest

from mindspore_rl.compiler.partition.replicate import shares
from mindspore_rl.errors import PolicyError, ProgramError
from mindspore_rl.policy import Cut, DistributionPolicy, FragmentRule
from tests.compiler.programs import analyse_with
from tests.compiler.test_programs import SCATTERED
from tests.tiers import quick

TAKE = (
    "    def learn",
    """    def take(self, x):
        ops.assign(self.optimizer.learning_rate, 0.0 * x)
        return x

    def learn""",
)
NET = "net = Net(config, spec)"
NORM = (
    f"{NET}\n        net.policy = nn.SequentialCell(nn.BatchNorm1d(spec.obs_shape[0]), net.policy)"
)
CLIPPED = "grads, means = gradient\ngrads, norm = clip_by_global_norm(grads, 0.5)\n"
CLIPPED += "gradient = (grads, means)"
ON_A_SHARE = "x = 0.0\nif gradient[1][0] > 0.0:\n    x = 1.0\nmsrl.update(self.take, x)"
ALL = ("    def learn", "    def apply_all(self, x):\n        pass\n\n    def learn")
WRONG = [
    ("target = reward - reward.mean()", {}, "msrl.mean"),
    ("m = reward.mean()\ntarget = reward * m", {}, "msrl.mean"),
    ("target = reward + ops.arange(self.config.num_envs)", {}, "write `numbers = ops.arange("),
    ("target = ops.flip(reward, (1,))", {}, "computed alone"),
    ("if (target.sum(0) * 2)[0] > 1:\n    target = -target", {}, "`(target.sum(0) * 2)[0] > 1`"),
    ("n = (reward > 2.0).astype('float32').sum()\ntarget = reward * n", {}, "sums up rows"),
    ("pass", {"before": CLIPPED}, "before its mark"),
    ("pass", {"before": ON_A_SHARE, "remove": [TAKE]}, "before its mark"),
    ("first = reward[0]\nif first:\n    target = 2.0 * reward", {}, ""),
    (
        "for i in range(3):\n    target = 0.9 * target\n    if reward[0] > 0.5:\n        break",
        {},
        "if reward[0] > 0.5",
    ),
    ("k = 0\nwhile k < 3 and reward[0] > 0.5:\n    k += 1", {}, "while k < 3 and reward[0] > 0.5"),
    ("msrl.update(self.apply_all, reward)", {"remove": [ALL]}, "would make their"),
    (
        "for _ in range(2):\n    h = ops.zeros((self.config.num_envs,))\n    target = reward + h",
        {},
        "zeros_like",
    ),
    ("h = ops.rand(3)\ntarget = reward * h[0]", {}, "another result each time"),
    ("pass", {"remove": [(NET, f"{NORM}\n        net.set_train()")]}, "changes parameters"),
    ("target = reward * msrl.sum(action)", {}, "int64"),
    ("r = reward.astype('float16')\ntarget = msrl.mean(r) * r", {}, "float16"),
    ("target = reward + ops.rand_like(reward)", {}, "another result each time"),
]


@pytest.mark.parametrize(("learn", "parts", "says"), quick(WRONG, 0, 2, 4, 7, 9, 12, 13, 14, 15))
def test_refused_on_two_replicas(learn, parts, says, tmp_path):
    with pytest.raises((PolicyError, ProgramError)) as caught:
        analyse_with(tmp_path, learn=learn, **parts)
    assert says in str(caught.value)
    assert ".py:" in str(caught.value)


def test_the_mark_asked_for_is_where_the_message_is_smallest(tmp_path):
    learn = "moment = obs[0, 0, 0]\nmsrl.update(self.take, moment + 1.0 + 0.0 * obs[0, 0, 0])"
    asked = 'and `moment` would\n?.* from\n.*obs.*\nto\n.*self.take.*\n.* mark "gradient"'
    with pytest.raises(PolicyError, match=asked):
        analyse_with(tmp_path, "Central", learn=learn, remove=[TAKE])


def test_a_policy_that_permits_too_little(tmp_path):
    policy = DistributionPolicy(
        "Mute",
        "no marks",
        (
            FragmentRule("actor", ("environment", "actor"), 2, "env"),
            FragmentRule("learner", ("replay", "gradient", "update")),
        ),
    )
    with pytest.raises(PolicyError, match=r"add Cut\('parameters', 'update', 'actor'\) to the p"):
        analyse_with(tmp_path, policy)


@pytest.mark.parametrize("missing", SCATTERED.cuts, ids=lambda cut: cut.mark)
def test_a_cut_that_a_policy_lacks_is_named_with_its_components(missing, tmp_path):
    cuts = tuple(cut for cut in SCATTERED.cuts if cut != missing)
    wanted = f"add Cut({missing.mark!r}, {missing.source!r}, {missing.target!r}) to the policy; or"
    with pytest.raises(PolicyError, match=re.escape(wanted)):
        analyse_with(tmp_path, dataclasses.replace(SCATTERED, cuts=cuts), compiled=False)


def test_what_a_learner_inserts_of_its_network_stays_with_it(tmp_path):
    """The cut of transitions is between others."""
    rules = (
        FragmentRule("env", ("environment",), 2, "env"),
        FragmentRule("actor", ("actor",)),
        FragmentRule("learner", ("replay", "gradient"), 2, "env"),
        FragmentRule("server", ("update",)),
    )
    ways = {
        "observation": ("environment", "actor"),
        "action": ("actor", "environment"),
        "transition": ("environment", "replay"),
        "gradient": ("gradient", "update"),
        "parameters": ("update", "gradient"),
    }
    cuts = tuple(Cut(mark, *way) for mark, way in ways.items())
    learn = (
        "target = reward + self.net.value(obs)\n"
        'msrl.replay_insert(target[0], keep=80, into="own")\n'
        'target = target + msrl.mean(msrl.replay_sample(8, of="own")[0])'
    )
    policy = DistributionPolicy("Stages", "four fragments", rules, cuts)
    plan = analyse_with(tmp_path, policy, learn=learn, compiled=False)
    assert not [m for m in plan.messages if (m.source, m.target) == ("learner", "env")]


def test_learner_state_may_only_change_by_update(tmp_path):
    with pytest.raises(ProgramError, match="only msrl.update"):
        analyse_with(
            tmp_path, learn="target = reward * self.take(msrl.mean(reward))", remove=[TAKE]
        )


def test_shares():
    assert [len(s) for s in shares(8, 3)] == [3, 3, 2]
    assert [i for s in shares(8, 3) for i in s] == list(range(8))


def test_a_value_of_actor_and_learner_is_computed_in_the_learner(tmp_path):
    """To send what the learner has to the actor would need a mark that sends parameters."""
    sampled = 'batch = msrl.boundary("batch", msrl.replay_sample())\n'
    both = f"{sampled}            both = obs + batch[0][0]\n"
    both += '            msrl.replay_insert(both, keep=800, into="both")\n'
    with pytest.raises(PolicyError, match=r'(.*\n)+.*pass `obs`, .*boundary\("transition"'):
        analyse_with(tmp_path, "SingleLearnerCoarse", remove=[(sampled, both)], compiled=False)
    seen = both.replace("obs +", 'msrl.boundary("transition", obs) +')
    analyse_with(tmp_path, "SingleLearnerCoarse", remove=[(sampled, seen)], compiled=False)


def test_a_value_of_a_shape_alone_is_named_where_it_would_cross(tmp_path):
    """Not the reports that the learner makes of it, which are smaller."""
    made = 'obs = msrl.boundary("observation", msrl.env_reset())'
    zeros = f"{made}\n        seen = ops.zeros((obs.shape[0],))"
    sampled = 'batch = msrl.boundary("batch", msrl.replay_sample())\n'
    seen = f"{sampled}            seen = seen + batch[2].mean(0)\n"
    report = 'msrl.report({**msrl.agent_learn(batch), "seen": msrl.mean(seen)})'
    changed = [(made, zeros), (sampled, seen), ("msrl.report(msrl.agent_learn(batch))", report)]
    with pytest.raises(PolicyError, match=r"`seen` would cross unmarked(.*\n)+.*\"transition\""):
        analyse_with(tmp_path, "SingleLearnerCoarse", remove=changed, compiled=False)
    marked = zeros.replace(
        "ops.zeros((obs.shape[0],))", 'msrl.boundary("transition", ops.zeros((obs.shape[0],)))'
    )
    changed[0] = made, marked
    analyse_with(tmp_path, "SingleLearnerCoarse", remove=changed, compiled=False)


def test_parameters_are_sent_once_where_nobody_acts_between_two_updates(tmp_path):
    """The second update stands under a condition; they are sent behind it in any case."""
    learnt = "msrl.report(msrl.agent_learn(batch))\n"
    again = learnt + "            if msrl.env_steps() > 64:\n"
    again += "                msrl.update(self.learner.apply_all)\n"
    changed = [(learnt, again), (ALL[0], ALL[1].replace("self, x", "self"))]
    cut = analyse_with(tmp_path, "SingleLearnerCoarse", remove=changed, compiled=False)
    sent = [m.after for m in cut.messages if m.mark == "parameters"]
    assert len(sent) == 1 and sent[0].startswith("if#")
