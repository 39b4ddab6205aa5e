"""VDN: Q-learning of a team that shares a reward (Sunehag et al. 2017, arXiv 1706.05296).

Each agent has a value of its own action, and their sum is the team's value: so the agents' best
actions are together the team's best. With `mixing`, a network makes the team's value instead, which
rises with each agent's value, and whose weights come from the joint state: QMIX (Rashid et al.
2018, arXiv 1803.11485). The agents share one network without memory; the online network chooses the
next action (van Hasselt et al. 2016).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.losses import clip_by_global_norm, huber_loss
from mindspore_rl.rl.mixing import monotonic_mix
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.updates import copy_every, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of VDN; the defaults are for simple_spread."""

    env: str = option("graph:simple_spread_v3", "environment of one team, discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(32, "environments, on all workers together")
    num_steps: int = option(10, "environment steps of each environment in an iteration")
    total_steps: int = option(200_000, "environment steps of the whole run")
    replay_size: int = option(100_000, "steps of the team in the replay, in all", ge=1)
    learning_starts: int = option(5_000, "environment steps before the first update", ge=0)
    updates: int = option(10, "updates in an iteration", ge=1)
    batch_size: int = option(256, "steps of an update", ge=1)
    learning_rate: float = option(5e-4, "Adam's step size", ge=0)
    gamma: float = option(0.95, "discount per step", ge=0, le=1)
    target_every: int = option(200, "updates between two copies to the target networks", ge=1)
    epsilon_start: float = option(1.0, "probability of random actions at first", ge=0, le=1)
    epsilon_end: float = option(0.05, "probability of random actions at the end", ge=0, le=1)
    exploration: float = option(0.3, "fraction of the run in which it falls", ge=0, le=1)
    mixing: bool = option(False, "QMIX's mixing network in place of the sum of values")
    mixing_size: int = option(32, "units of the mixing network", ge=1)
    max_grad_norm: float = option(10.0, "bound of the global gradient norm", gt=0)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, A, ...]`, and a batch of them `[n, A, ...]`."""

    obs: Any
    state: Any  # the joint state, `[B, s]`
    action: Any
    reward: Any
    terminated: Any  # `[B]`
    final_obs: Any
    final_state: Any


class Mixer(nn.Cell):
    """The team's value: the sum of its agents', or a network with weights of the joint state."""

    def __init__(self, config, spec):
        super().__init__()
        num_agents, size = spec.obs_shape
        self.mixing, self.units, state = config.mixing, config.mixing_size, num_agents * size
        if not config.mixing:
            return

        # With a gain of 1, the values diverge on simple_spread.
        def layers(hidden, out_size, index):
            return MLP(state, hidden, out_size, 0.1, config.seed, index, "relu", initial="uniform")

        self.first_weight = layers((), num_agents * self.units, 2)
        self.first_bias = layers((), self.units, 3)
        self.last_weight = layers((), self.units, 4)
        self.last_bias = layers((self.units,), 1, 5)

    def construct(self, values, state):
        """Returns: `[n]` of the agents' values `[n, A]` and states `[n, s]`."""
        if not self.mixing:
            return values.sum(-1)
        weights = self.first_weight(state).reshape((*values.shape, self.units))
        biases = self.first_bias(state), self.last_bias(state).squeeze(-1)
        return monotonic_mix(values, weights, biases[0], self.last_weight(state), biases[1])


class TeamValue(nn.Cell):
    """The agents' network, and the mixer."""

    def __init__(self, config, spec):
        super().__init__()
        self.size, self.num_actions = spec.obs_shape[1], spec.action_space.n
        self.agent = MLP(
            self.size, config.hidden, self.num_actions, 1.0, config.seed, 1, activation="relu"
        )
        self.mixer = Mixer(config, spec)

    def construct(self, obs):
        """Returns: values of each agent's actions `[n, A, actions]`, of obs `[n, A, O]`."""
        out = self.agent(obs.reshape((-1, self.size)))
        return out.reshape((*obs.shape[:-1], self.num_actions))


class VDNActor(Actor):
    """Each agent takes its best action, or with probability epsilon a random one."""

    noise_size = 2

    def __init__(self, network):
        super().__init__()
        self.network = network

    def act(self, obs, epsilon, noise):
        """Returns: actions `[B, A]`."""
        anything = (noise[..., 1] * self.network.num_actions).astype(int32)
        return ops.where(noise[..., 0] < epsilon, anything, self.act_greedily(obs, epsilon))

    def act_greedily(self, obs, epsilon):
        """Returns: the best actions `[B, A]`, for evaluation."""
        return self.network(obs).argmax(-1).astype(int32)


class VDNLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, network, target, config):
        super().__init__()
        self.network, self.target, self.config = network, target, config
        self.online, self.copied = network.trainable_params(), target_parameters(target)
        self.updates = Parameter(Tensor(0, int32), name="updates", requires_grad=False)
        self.optimizer = nn.Adam(self.online, config.learning_rate)

    def loss(self, batch):
        """Per sample: the error of the team's value (equation 6 of QMIX's paper), and the value.

        The team's reward is the mean of its agents'.
        """
        size = self.network.num_actions
        action = ops.one_hot(batch.action, size)
        value = self.network.mixer((self.network(batch.obs) * action).sum(-1), batch.state)
        best = ops.one_hot(self.network(batch.final_obs).argmax(-1), size)
        following = (self.target(batch.final_obs) * best).sum(-1)
        following = self.target.mixer(following, batch.final_state)
        going_on = 1.0 - batch.terminated.astype(float32)
        target = batch.reward.mean(-1) + self.config.gamma * going_on * following
        return huber_loss(value, ops.stop_gradient(target)), value

    def apply(self, grads):
        """Takes one step of Adam; every `target_every` updates copies the network to the target."""
        self.optimizer(grads)
        copy_every(self.copied, self.online, self.updates, self.config.target_every)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        loss, value, grad_norm = 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size)
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.loss, self.network, batch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.apply, grads)
                loss, value = means
        return {"loss": loss, "q_value": value, "grad_norm": grad_norm}


class VDNTrainer(Trainer):
    """VDN on any environment of one team, with discrete actions and flat observations."""

    Config = Config
    multi_agent = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if len(spec.teams) != 1 or not isinstance(spec.action_space, Discrete):
            raise ConfigError(
                f"VDN is for one team with discrete actions; {spec.name} has {len(spec.teams)} "
                f"teams and {spec.action_space}: choose another environment, or mappo for teams"
            )
        network, target = TeamValue(config, spec), TeamValue(config, spec)
        self.actor = VDNActor(network)
        self.learner = VDNLearner(network, target, config)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            done = msrl.env_steps() / (config.exploration * config.total_steps)
            fall = config.epsilon_start - config.epsilon_end
            epsilon = config.epsilon_start - fall * ops.clamp(done, 0.0, 1.0)
            for _ in msrl.steps():
                action = msrl.agent_act(obs, epsilon)
                next_obs, final_obs, reward, terminated, _ = msrl.env_step(action)
                state, final_state = msrl.boundary(
                    "state", (msrl.joint(obs), msrl.joint(final_obs))
                )
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        state=state,
                        action=action,
                        reward=reward,
                        terminated=terminated,
                        final_obs=final_obs,
                        final_state=final_state,
                    ),
                    keep=config.replay_size,
                )
                obs = next_obs
            msrl.report({**msrl.agent_learn(), "epsilon": epsilon})
