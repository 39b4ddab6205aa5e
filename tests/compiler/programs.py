"""Programs from one template, with a line of the loop or of `learn` replaced."""

import textwrap
import uuid

from mindspore_rl import programs
from mindspore_rl.compiler.analysis.trainer import make_trainer
from mindspore_rl.compiler.frontend.build import build
from mindspore_rl.compiler.pipeline import JobRequest, analyse
from mindspore_rl.compiler.verify import verify_program
from mindspore_rl.environments.registry import spec
from mindspore_rl.jobs import registry

TEMPLATE = """
from mindspore import nn, ops
from mindspore_rl.api import Trainer
from mindspore_rl.rl.losses import clip_by_global_norm
from tests.programs.small_agents import Act, BaseLearner, Config, Net

class Learn(BaseLearner):
    def learn(self, msrl, batch):
        obs, action, reward = batch
        target = reward
{learn}
        gradient = msrl.gradient(self.loss, self.net, obs, action, target)
{before}
        grads, means = msrl.boundary("gradient", gradient)
        msrl.update(self.apply, grads)
        return {{"loss": means[0]}}

class Algorithm(Trainer):
    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        net = Net(config, spec)
        self.actor, self.learner = Act(net), Learn(net, config)

    def train(self, msrl):
        obs = msrl.boundary("observation", msrl.env_reset())
        for _ in msrl.iterations():
            for step in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.boundary(
                    "observation", msrl.env_step(msrl.boundary("action", action)))
{loop}
                msrl.replay_insert(*msrl.boundary("transition", (obs, action, reward)))
                obs = next_obs
            batch = msrl.boundary("batch", msrl.replay_sample())
            msrl.report(msrl.agent_learn(batch))
"""


def program_with(folder, remove=(), **parts):
    """Returns the template's program with some lines inserted, and strings replaced."""
    text = TEMPLATE.format(
        **{
            name: textwrap.indent(textwrap.dedent(parts.get(name, "pass")), " " * depth)
            for name, depth in (("learn", 8), ("before", 8), ("loop", 16))
        }
    )
    for old, new in remove:
        assert old in text
        text = text.replace(old, new)
    file = folder / f"program_{uuid.uuid4().hex[:8]}.py"
    file.write_text(text)
    return file


def build_with(folder, remove=(), **parts):
    """Builds and verifies the template's program with some lines inserted, without analysis."""
    file = program_with(folder, remove, **parts)
    cls = programs.trainer_class(file)
    config = cls.Config(num_steps=4)
    program = build(make_trainer(cls, config, spec(config.env)), file.stem)
    verify_program(program)
    return program


def analyse_with(folder, policy="MultipleLearners", workers=2, remove=(), compiled=True, **parts):
    """Partitions the template's program with some lines inserted, and strings replaced."""
    file = program_with(folder, remove, **parts)
    if isinstance(policy, str):
        policy = registry.load_policy(registry.find_policy(policy))
    config = programs.trainer_class(file).Config(num_steps=4)
    return analyse(JobRequest(file, policy, config, workers, compiled=compiled))
