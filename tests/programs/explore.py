"""DQN-like: epsilon-greedy by the step's index, two act sites, a target network, `if`s."""

from mindspore import ops

from mindspore_rl.api import Actor, Trainer
from mindspore_rl.rl.networks import MLP
from tests.programs.small_agents import BaseLearner, Config


class Act(Actor):
    noise_size = 2

    def __init__(self, net, count):
        super().__init__()
        self.net, self.count = net, count

    def act(self, obs, epsilon, noise):
        greedy = self.net(obs).argmax(-1).astype("int32")
        chosen = ops.minimum((noise[:, 0] * self.count).astype("int32"), self.count - 1)
        return ops.where(noise[:, 1] < epsilon, chosen, greedy)


class Learn(BaseLearner):
    def __init__(self, net, target, config):
        super().__init__(net, config)
        self.target = target
        self.pairs = tuple(zip(target.trainable_params(), net.trainable_params(), strict=True))

    def loss(self, obs, action, goal):
        q = self.net(obs.reshape((-1, obs.shape[-1])))
        chosen = ops.gather_elements(q, -1, action.reshape((-1, 1))).reshape(-1)
        return ops.square(chosen - goal.reshape(-1))

    def sync(self):
        for old, new in self.pairs:
            ops.assign(old, new)

    def learn(self, msrl, batch):
        obs, action, reward, terminated, final_obs = batch
        after = ops.amax(self.target(final_obs.reshape((-1, final_obs.shape[-1]))), -1)
        goal = reward + self.config.gamma * (1.0 - terminated.astype("float32")) * after.reshape(
            reward.shape
        )
        for i in range(3):
            grads, means = msrl.gradient(self.loss, self.net, obs, action, goal)
            msrl.update(self.apply, grads)
            if i == 1:
                msrl.update(self.sync)
        return {"loss": means[0]}


class Explore(Trainer):
    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        size, count = spec.obs_shape[0], spec.action_space.n
        net, target = (MLP(size, (8,), count, 1.0, config.seed, i) for i in (1, 2))
        self.actor, self.learner = Act(net, count), Learn(net, target, config)

    def train(self, msrl):
        obs = msrl.env_reset()
        for iteration in msrl.iterations():
            for step in msrl.steps():
                epsilon = 1.0 / (step + 1.0) + 0.1 / (iteration + 1.0)
                if step == 0:  # noqa: SIM108  (a branch is what is tested)
                    bonus = 1.0
                else:
                    bonus = 0.5
                first = msrl.agent_act(obs, epsilon)
                second = msrl.agent_act(obs, 0.5)
                action = ops.maximum(first, second)
                next_obs, final_obs, reward, terminated, _ = msrl.env_step(action)
                reward = reward * bonus
                msrl.replay_insert(obs, action, reward, terminated, final_obs)
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
