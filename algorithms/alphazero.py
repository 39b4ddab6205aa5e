"""AlphaZero: planning with a game's own rules, by Gumbel search, against itself.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play", with the search of Danihelka et al. 2022, "Policy improvement by planning with
Gumbel". Each decision is a search over the moves that the rules allow, of all games at once, inside
the compiled `act`. After each iteration the network learns the improved policies of the searches
and the results of the games. The game is an in-graph environment with a method `after`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import gumbel
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.losses import clip_by_global_norm, value_loss
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.tree_search import GumbelSearch
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of AlphaZero; the defaults learn tic-tac-toe."""

    env: str = option("graph:TicTacToe-v0", "game of two players, with `after` in MindSpore")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(64, "games, on all workers together")
    num_steps: int = option(16, "moves of each game in an iteration")
    total_steps: int = option(300_000, "moves of the whole run")
    simulations: int = option(32, "moves that a decision tries", ge=1)
    considered: int = option(9, "moves that a search considers at first", ge=1)
    max_depth: int = option(6, "longest sequence of moves in a search", ge=1)
    value_scale: float = option(0.1, "c_scale, the weight of values in a search", gt=0)
    epsilon: float = option(0.2, "probability of a random move in training", ge=0, le=1)
    gamma: float = option(1.0, "discount per move", ge=0, le=1)
    gae_lambda: float = option(0.8, "lambda of the returns; 1: results of games", ge=0, le=1)
    update_epochs: int = option(8, "passes over the moves of an iteration", ge=1)
    num_minibatches: int = option(4, "minibatches of a pass", ge=1, divides="num_steps")
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    value_coef: float = option(1.0, "weight of the values' loss", ge=0)
    max_grad_norm: float = option(5.0, "bound of the global gradient norm", gt=0)
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """A move in each game `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    policy: Any  # of the search, `[B, actions]`
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class Planner(nn.Cell):
    """The network's judgement of positions, and the game's rules for the search."""

    def __init__(self, config, spec):
        super().__init__()
        # Here, as what a cell's module names is part of the cell's key in the cache.
        from mindspore_rl.environments.registry import make_graph  # noqa: PLC0415

        self.game = make_graph(spec.name)
        if not (spec.two_players and hasattr(self.game, "after")):
            raise ConfigError(
                f"AlphaZero plays a game against itself by its rules, and {spec.name} has no two "
                "players or no method `after(obs, action)`: train it on graph:TicTacToe-v0, "
                "graph:ConnectFour-v0 or a game of your own (docs/add_an_environment.md), or train "
                "muzero, which learns a model"
            )
        self.num_actions, self.mask_size = spec.action_space.n, spec.mask_size
        size = spec.obs_shape[0] - self.mask_size
        self.torso = MLP(size, config.hidden[:-1], config.hidden[-1], 1.0, config.seed, 1, "relu")
        self.policy = MLP(config.hidden[-1], (), self.num_actions, 0.01, config.seed, 2)
        self.value = MLP(config.hidden[-1], (), 1, 0.01, config.seed, 3)

    def judge(self, obs):
        """Returns: the policy's logits `[..., actions]` and the value `[...]` of obs `[..., k]`."""
        hidden = ops.relu(self.torso(features(obs, self.mask_size)))
        value = ops.tanh(self.value(hidden)).reshape(obs.shape[:-1])
        return masked(self.policy(hidden), obs, self.mask_size), value

    def root(self, obs):
        """Returns: the search's state `[B, k + 1]`: obs, and 1 where the game is over, else 0."""
        return ops.concat((obs, 0.0 * obs[:, :1]), 1)

    def imagine(self, state, action):
        """Returns: the next state, the reward, the policy's logits and the value there."""
        over = state[:, -1]
        obs, reward, ends = self.game.after(state[:, :-1], action)
        logits, value = self.judge(obs)
        reward, over = reward * (1.0 - over), ops.maximum(over, ends)
        return ops.concat((obs, over.expand_dims(1)), 1), reward, logits, value * (1.0 - over)


class AlphaZeroActor(Actor):
    """Searches, then makes the move that the search found."""

    def __init__(self, planner, config):
        super().__init__()
        self.planner, self.noise_size = planner, planner.num_actions + 2
        self.epsilon = config.epsilon
        self.search = GumbelSearch(
            planner,
            planner.num_actions,
            config.simulations,
            config.considered,
            config.max_depth,
            -config.gamma,
            config.value_scale,
        )

    def searched(self, obs, chance):
        """Returns: action `[B]` and the improved policy `[B, actions]`."""
        logits, value = self.planner.judge(obs)
        return self.search(self.planner.root(obs), logits, value, chance)

    def act(self, obs, noise):
        """Returns: action `[B]` and the improved policy `[B, actions]`."""
        planner = self.planner
        action, policy = self.searched(obs, gumbel(noise[:, 2:]))
        anything = random_action(noise[:, 0], obs, planner.mask_size, planner.num_actions)
        return ops.where(noise[:, 1] < self.epsilon, anything, action), policy

    def act_greedily(self, obs):
        """Returns: the best action `[B]`, for evaluation."""
        return self.searched(obs, ops.zeros((obs.shape[0], self.planner.num_actions)))[0]


class AlphaZeroLearner(Learner):
    """Learns what the searches and the results of the games tell."""

    def __init__(self, planner, config):
        super().__init__()
        self.planner, self.config = planner, config
        self.optimizer = Adam(planner.trainable_params(), config.learning_rate)

    def loss(self, obs, policy, returns):
        """Per move: the loss (Silver et al. 2018, eq. 1), then its two parts."""
        logits, value = self.planner.judge(obs)
        policy_loss = -(policy * ops.log_softmax(logits, -1)).sum(-1)
        error = value_loss(value, returns)
        return policy_loss + self.config.value_coef * error, policy_loss, error

    def learn(self, msrl, batch):
        """Learns from moves `[T, B]`. Returns: metrics of the last minibatch."""
        config, planner = self.config, self.planner
        _, value = planner.judge(batch.obs)
        _, final_value = planner.judge(batch.final_obs)
        rollout = batch.reward, value, final_value, batch.terminated, batch.truncated
        _, returns = gae(*rollout, -config.gamma, config.gae_lambda)
        data = batch.obs, batch.policy, returns
        for _ in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, data):
                grads, means = msrl.gradient(self.loss, planner, *minibatch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.optimizer.apply, grads, config.learning_rate)
        loss, policy_loss, error = means
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "grad_norm": grad_norm,
        }


class AlphaZeroTrainer(Trainer):
    """AlphaZero on a game of two players whose rules are in MindSpore's operators."""

    Config = Config
    masks_actions = True
    two_players = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        planner = Planner(config, spec)
        self.actor = AlphaZeroActor(planner, config)
        self.learner = AlphaZeroLearner(planner, config)

    def train(self, msrl):
        """Plays `num_steps` moves of every game, then learns from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, policy = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        policy=policy,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    )
                )
                obs = next_obs
            msrl.report(msrl.agent_learn(msrl.replay_sample()))
