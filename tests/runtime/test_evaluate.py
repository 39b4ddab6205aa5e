"""`msrl eval`: it plays the loop as trained, with any values carried between iterations."""

import sys

import numpy as np
import pytest

from mindspore_rl import programs
from mindspore_rl.cli import main as cli
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import CheckpointError, ProgramError
from mindspore_rl.jobs import registry
from mindspore_rl.runtime import checkpoint
from mindspore_rl.trained import evaluate
from mindspore_rl.trained.still import acts_alone
from tests.compiler.inproc import PROGRAMS, request
from tests.runtime.test_worker import run

ALTERNATES = """
from mindspore import ops
from tests.programs import small_agents

class Act(small_agents.Act):
    noise_size = 0

    def act(self, obs, turn):
        return turn.astype("int32"), 1.0 - turn

    def act_greedily(self, obs, turn):
        return 1 - turn.astype("int32")

class Alternates(small_agents.SmallTrainer):
    Act = Act

    def train(self, msrl):
        obs = msrl.env_reset()
        turn = obs[:, 0] * 0.0
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, turn = msrl.agent_act(obs, turn)
                obs, _, reward, terminated, truncated = msrl.env_step(action)
                turn = ops.where(ops.logical_or(terminated, truncated), turn * 0.0, turn)
                msrl.replay_insert(obs, action, reward)
            grads, _ = msrl.gradient(self.learner.loss, self.learner.net, *msrl.replay_sample())
            msrl.update(self.learner.apply, grads)
"""
GREEDY = """
from mindspore import Parameter, Tensor, ops
from mindspore_rl.rl.action_distributions import categorical_sample
from tests.programs import small_agents

class Act(small_agents.Act):
    def __init__(self, net):
        super().__init__(net)
        self.acted = Parameter(Tensor([0.0]), name="acted")

    def act(self, obs, noise):
        {acts}
        return categorical_sample(self.net.policy(obs), noise)

    def act_greedily(self, obs):
        return ops.argmax(self.net.policy(obs), -1).astype("int32")

class Greedy(small_agents.SmallTrainer):
    Act = Act

    def train(self, msrl):
        start = obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act({given})
                obs, _, reward, _, _ = msrl.env_step({taken})
"""
COUNTS = """
import numpy as np
from tests.environments.still import Still

class Counts(Still):
    \"\"\"Pays 1 for the action 0 in even steps of an episode and for 1 in odd ones.\"\"\"

    max_episode_steps = 21

    def reset(self):
        self.steps = 0
        return super().reset()

    def step(self, action):
        obs, final_obs, _, _, cut = super().step(action)
        reward = (action == self.steps % 2).astype(np.float32)
        self.steps += 1
        return obs, final_obs, reward, np.full(self.size, self.steps == 21), cut
"""


def played(program, env, episodes=3, greedy=False, **config):
    """Plays a program's loop with its initial parameters."""
    cls = programs.trainer_class(program)
    config = cls.Config(env=env, num_envs=episodes, **config)
    found = evaluate.Played(cls(config, spec(env)), {"iteration": 0, "env_steps": 0}, greedy=greedy)
    with pytest.raises(evaluate.Over):
        found.run()
    return found


@pytest.fixture(name="counts")
def written(tmp_path):
    (tmp_path / "alternates.py").write_text(ALTERNATES)
    (tmp_path / "counts.py").write_text(COUNTS)
    return tmp_path / "alternates.py", f"{tmp_path / 'counts.py'}:Counts"


def test_state_is_carried_from_step_to_step(counts):
    """Across iterations of 16 steps and without learning: an update would not find its rows."""
    assert played(*counts).returns.tolist() == [21.0] * 3
    assert played(*counts, greedy=True).returns.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("given", "taken", "acts", "alone"),
    [
        ("obs", "action", "pass", True),
        ("obs + 1.0", "action", "pass", False),
        ("start", "action", "pass", False),
        ("obs", "1 - action", "pass", False),
        ("obs", "action", "ops.assign_add(self.acted, Tensor([1.0]))", False),
    ],
)
def test_actors_whose_actions_are_all_play_without_the_loop(given, taken, acts, alone, tmp_path):
    (tmp_path / "greedy.py").write_text(GREEDY.format(given=given, taken=taken, acts=acts))
    cls = programs.trainer_class(tmp_path / "greedy.py")
    trainer = cls(cls.Config(num_envs=3), spec("CartPole-v1"))
    state = {"iteration": 0, "env_steps": 0}
    act = acts_alone(trainer, state, 3)
    assert trainer.actor.acted.asnumpy() == [0.0]
    assert (act is not None) == alone
    if act is None:
        return

    def steps(way):
        found = []
        one = evaluate.Played(trainer, state, True, watch=lambda *step: found.append(step[:3]))
        with pytest.raises(evaluate.Over):
            one.run(way)
        return [one.returns, *(part for step in found for part in step)]

    assert all(map(np.array_equal, steps(None), steps(act)))
    assert len(steps(None)) == len(steps(act)) > 30


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("a2c", "CartPole-v1"),
        ("explore", "graph:CartPole-v1"),
        ("kl_stop", "CartPole-v1"),
        ("marks_in_branches", "CartPole-v1"),
        ("recurrent", "CartPole-v1"),
        ("sampled_in_a_loop", "CartPole-v1"),
        ("teams", "graph:simple_tag_v3"),
        ("two_phase", "CartPole-v1"),
        ("two_rollouts", "CartPole-v1"),
    ],
)
def test_every_program_is_played(name, env):
    found = played(PROGRAMS / f"{name}.py", env)
    assert not found.under_way.any()
    assert np.all(np.isfinite(found.returns)) and found.returns.any()


def test_windows_by_priority_are_played_beyond_the_first_update():
    config = {"priority": 0.6, "n_step": 3, "num_steps": 4, "batch_size": 6, "updates": 1}
    program = registry.find_algorithm("dqn")
    found = played(program, "CartPole-v1", learning_starts=0, hidden=(4,), **config)
    assert not found.under_way.any() and np.all(found.returns > 4)


def test_a_recurrent_policy_is_played_from_its_run(tmp_path, capsys):
    job = request(PROGRAMS / "recurrent.py", "SingleLearnerCoarse", 2)
    run(job, tmp_path / "run")
    assert cli.main(["eval", str(tmp_path / "run"), "--episodes", "3"]) == 0
    first, error = capsys.readouterr()
    assert "over 3 episodes" in first
    assert "carries" not in error
    assert cli.main(["eval", str(tmp_path / "run"), "--episodes", "3"]) == 0
    assert capsys.readouterr().out == first


def test_what_the_loop_has_learnt_itself_is_told_as_lost(tmp_path, capsys):
    program = tmp_path / "counts.py"
    source = (PROGRAMS / "recurrent.py").read_text()
    before = "        for _ in msrl.iterations():\n"
    assert before in source
    after = f"        seen = 0.0\n{before}            seen = seen + 1.0\n"
    report = "            msrl.report({'seen': seen})\n"
    # A counter of shuffles, which is carried too and nothing that the loop has learnt.
    report += "            if seen > 1.0:\n                for _ in msrl.minibatches(1, batch):\n"
    report += "                    seen = seen + 0.0\n"
    program.write_text(source.replace(before, after) + report)
    run(request(program, "SingleLearnerCoarse", 1), tmp_path / "run")
    assert cli.main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 0
    assert "the loop carries seen from iteration to iteration" in capsys.readouterr().err


def test_an_act_greedily_of_other_arguments_is_refused(tmp_path, counts):
    program = tmp_path / "edited.py"
    program.write_text(ALTERNATES.replace("greedily(self, obs, turn)", "greedily(self, obs)"))
    with pytest.raises(ProgramError, match=r"Act.act_greedily .* 2 arguments.*--sample"):
        played(program, counts[1], greedy=True)


def test_a_run_of_other_networks_is_refused(tmp_path):
    run(request(PROGRAMS / "recurrent.py", "SingleLearnerCoarse", 1), tmp_path)
    folder = tmp_path / checkpoint.FOLDER
    path, about, _ = checkpoint.load_newest(folder)
    arrays, _ = checkpoint.load(path)
    name = "parameters/actor.net.cell.layers.0.weight"
    arrays["parameters/actor.net.old"] = arrays.pop(name)
    checkpoint.save(folder, about["iteration"], arrays, about)
    with pytest.raises(CheckpointError) as raised:
        evaluate.evaluate(tmp_path, 1, 1, sample=True)
    shape = arrays["parameters/actor.net.old"].shape
    assert str(raised.value).splitlines()[1:] == [
        f"  {name} has no array in it and shape {shape} here",
        f"  parameters/actor.net.old has shape {shape} in it and no array here",
    ]


def test_a_run_whose_program_was_edited_is_refused(tmp_path, monkeypatch):
    run(request(PROGRAMS / "recurrent.py", "SingleLearnerCoarse", 1), tmp_path)
    module = programs.trainer_class(PROGRAMS / "recurrent.py").__module__
    monkeypatch.setattr(sys.modules[module], "WIDTH", 8)
    with pytest.raises(CheckpointError, match=r"has no actor.net.*is not as it was"):
        evaluate.evaluate(tmp_path, 1, 1, sample=True)
