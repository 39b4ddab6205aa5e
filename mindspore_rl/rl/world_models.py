"""Learnt models: DreamerV3's (Hafner et al. 2023, arXiv 2301.04104) and ensembles of Gaussians."""

from mindspore import Tensor, float32, int32, nn, ops

from mindspore_rl.rl.action_distributions import (
    categorical_sample,
    inverse_cdf,
    minus_log,
    one_hot_of_probs,
    softplus,
)
from mindspore_rl.rl.distributional import categorical_loss, two_hot
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.recurrent import GRU, put_row

UNIFORM_SHARE = 0.01
"""Share of the uniform distribution in each class, so that no probability is 0."""


def symlog(x: Tensor) -> Tensor:
    """Returns ``sign(x) log(1 + |x|)``, which is small for numbers of any size."""
    return ops.sign(x) * ops.log(1.0 + ops.abs(x))


def symexp(x: Tensor) -> Tensor:
    """Returns ``sign(x) (exp(|x|) - 1)``, the inverse of ``symlog``."""
    return ops.sign(x) * (ops.exp(ops.abs(x)) - 1.0)


def symlog_mean(logits: Tensor, atoms: Tensor) -> Tensor:
    """Returns ``symexp(sum_i p_i z_i)`` with ``p = softmax(logits)``: the value of a distribution.

    Args:
        logits: [N, k] float32.
        atoms: [k] float32, evenly spaced symlogs z of values.

    Returns:
        value: [N] float32.
    """
    return symexp((ops.softmax(logits, -1) * atoms).sum(-1))


def symlog_loss(logits: Tensor, value: Tensor, atoms: Tensor) -> Tensor:
    """Returns the divergence of a distribution from the two-hot symlog of a value.

    Args:
        logits: [N, k] float32; the gradient flows through them.
        value: [N] float32.
        atoms: see ``symlog_mean``.

    Returns:
        loss: [N] float32, nats.
    """
    return categorical_loss(logits, two_hot(symlog(value), atoms))


def latent_log_probs(logits: Tensor) -> Tensor:
    """Returns ``log(0.99 softmax(logits) + 0.01 / classes)``: [..., groups, classes] float32."""
    share = UNIFORM_SHARE / logits.shape[-1]
    return ops.log((1.0 - UNIFORM_SHARE) * ops.softmax(logits, -1) + share)


def latent_sample(log_probs: Tensor, noise: Tensor) -> Tensor:
    """Draws a class of each group, with straight-through gradients (Hafner et al. 2021, alg. 1).

    Args:
        log_probs: [N, groups, classes] float32; the gradient flows as if the result were the
            probabilities.
        noise: [N, groups] float32, uniform in [0, 1).

    Returns:
        latent: [N, groups * classes] float32, one-hot in each group.
    """
    probs = ops.exp(log_probs)
    drawn = inverse_cdf(ops.stop_gradient(probs), noise.expand_dims(-1))
    return one_hot_of_probs(drawn, probs).reshape((log_probs.shape[0], -1))


def latent_mode(log_probs: Tensor) -> Tensor:
    """Returns the most likely class of each group, see ``latent_sample``."""
    found = ops.one_hot(log_probs.argmax(-1).astype(int32), log_probs.shape[-1]).astype(float32)
    return found.reshape((log_probs.shape[0], -1))


def latent_divergence(log_probs: Tensor, other: Tensor) -> Tensor:
    """Returns KL(p || q), summed over the groups.

    Args:
        log_probs: [..., groups, classes] float32, log p.
        other: likewise log q.

    Returns:
        divergence: [...] float32, nats.
    """
    return (ops.exp(log_probs) * (log_probs - other)).sum((-2, -1))


def balanced_divergence(
    posterior: Tensor, prior: Tensor, dynamics: float, representation: float, free: float
) -> Tensor:
    """Returns the losses of the latent states, with free bits and balanced gradients.

    ``dynamics max(free, KL(sg(q) || p)) + representation max(free, KL(q || sg(p)))``; sg stops the
    gradient.

    Args:
        posterior: [..., groups, classes] float32, log q, of the observations.
        prior: likewise log p, of the model.
        dynamics: weight of the loss that moves the prior.
        representation: weight of the loss that moves the posterior.
        free: nats below which a divergence has no gradient.

    Returns:
        loss: [...] float32, nats.
    """
    of_prior = latent_divergence(ops.stop_gradient(posterior), prior)
    of_posterior = latent_divergence(posterior, ops.stop_gradient(prior))
    moved = dynamics * ops.maximum(of_prior, free)
    return moved + representation * ops.maximum(of_posterior, free)


def soft_bounds(x: Tensor, low: float, high: float) -> Tensor:
    """Returns x moved between bounds, with a gradient everywhere (Chua et al. 2018, appendix A.1).

    ``low + softplus(y - low)`` with ``y = high - softplus(high - x)``, arXiv 1805.12114.
    """
    x = high - softplus(high - x)
    return low + softplus(x - low)


def gaussian_loss(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """Returns ``sum_k ((target_k - mean_k)^2 / variance_k + log variance_k) / 2``.

    The negative logarithm of a diagonal Gaussian's density, up to a constant.

    Args:
        mean: [N, k] float32; the gradient flows through it.
        log_variance: [N, k] float32; the gradient flows through it.
        target: [N, k] float32.

    Returns:
        loss: [N] float32.
    """
    square = ops.square(target - mean) * ops.exp(-log_variance)
    return 0.5 * (square + log_variance).sum(-1)


def bootstrap_weights(noise: Tensor) -> Tensor:
    """Returns weights of samples, by which each of several networks learns from data of its own.

    ``-log(1 - u)``, exponential with the mean 1: the Bayesian bootstrap (Rubin 1981), without its
    division by the sum over the samples.

    Args:
        noise: [N, networks] float32, u, uniform in [0, 1).
    """
    return minus_log(1.0 - noise)


class StateSpaceModel(nn.Cell):
    """The recurrent state-space model (Hafner et al. 2019, arXiv 1811.04551) of discrete actions.

    A state is a memory, that of a recurrent layer, and a latent: categorical variables that are
    drawn from the posterior, given the memory and an observation, or from the prior, without one.

    Args:
        obs_size: features of an observation.
        num_actions: A.
        size: units of the memory.
        groups: categorical variables of a latent.
        classes: values of each.
        hidden: widths of the hidden layers of posterior and prior (ReLU).
        seed: the job's seed; the networks have the name indices 1 to 3.

    Attributes:
        latent_size: numbers of a latent, groups * classes.
        state_size: numbers of a state, memory and latent.
    """

    def __init__(
        self,
        obs_size: int,
        num_actions: int,
        size: int,
        groups: int,
        classes: int,
        hidden: tuple,
        seed: int,
    ):
        super().__init__()
        self.obs_size, self.num_actions, self.size = obs_size, num_actions, size
        self.groups, self.classes, self.latent_size = groups, classes, groups * classes
        self.state_size = size + self.latent_size
        self.core = GRU(self.latent_size + num_actions, size, seed, 1)
        self.of_obs = MLP(size + obs_size, hidden, self.latent_size, 1.0, seed, 2, "relu")
        self.alone = MLP(size, hidden, self.latent_size, 1.0, seed, 3, "relu")

    def moved(self, memory: Tensor, latent: Tensor, action: Tensor) -> Tensor:
        """Returns the memory after an action `[n]` int32: `[n, size]`.

        Before an episode, memory and latent are 0 and the action is -1.
        """
        chosen = ops.one_hot(action, self.num_actions).astype(float32)
        return self.core(ops.concat((latent, chosen), 1), (memory,))[0]

    def _log_probs(self, logits: Tensor) -> Tensor:
        return latent_log_probs(logits.reshape((-1, self.groups, self.classes)))

    def posterior(self, memory: Tensor, obs: Tensor) -> Tensor:
        """Returns log-probabilities `[n, groups, classes]`, given obs `[n, ...]`, as symlogs."""
        rows = symlog(obs.reshape((-1, self.obs_size)))
        return self._log_probs(self.of_obs(ops.concat((memory, rows), 1)))

    def prior(self, memory: Tensor) -> Tensor:
        """Returns log-probabilities `[n, groups, classes]`."""
        return self._log_probs(self.alone(memory))

    def follow(
        self, memory: Tensor, obs: Tensor, action: Tensor, ended: Tensor, noise: Tensor
    ) -> tuple:
        """Follows windows of steps, in which episodes may end.

        Args:
            memory: [n, size] float32, at the first step.
            obs: [n, T, ...] float32.
            action: [n, T] int32.
            ended: [n, T] bool, terminated or truncated at that step.
            noise: [n, T * groups] float32, uniform in [0, 1).

        Returns:
            (states, memories): the state at each obs, [n, T, state_size]; the memory after each
                action, in the same episode, [n, T, size].
        """
        nothing = ops.zeros((1, self.latent_size), float32)
        none = ops.zeros((1,), int32) - 1
        begun = self.moved(ops.zeros((1, self.size), float32), nothing, none)
        noise = noise.reshape((*action.shape, -1))
        states, memories = [], []
        for step in range(action.shape[1]):
            latent = latent_sample(self.posterior(memory, obs[:, step]), noise[:, step])
            states.append(ops.concat((memory, latent), 1))
            memory = self.moved(memory, latent, action[:, step])
            memories.append(memory)
            memory = ops.where(ended[:, step].expand_dims(1), begun, memory)
        return ops.stack(states, 1), ops.stack(memories, 1)

    def imagine(self, policy: nn.Cell, state: Tensor, noise: Tensor) -> tuple:
        """Imagines steps, by the prior, in a loop through which no gradient goes.

        Args:
            policy: from states `[n, state_size]` to logits `[n, A]`.
            state: [n, state_size] float32.
            noise: [T, n, groups + 1] float32, uniform in [0, 1).

        Returns:
            (states, actions): [T + 1, n, state_size] float32, the first are those given; [T, n]
                int32.
        """
        steps, rows = noise.shape[0], state.shape[0]
        states = ops.zeros((steps + 1, *state.shape), float32)
        actions = ops.zeros((steps, rows), int32)
        step = Tensor(0, int32)
        states = put_row(states, step, state)
        while step < steps:
            given = ops.gather(noise, step, 0)
            action = categorical_sample(policy(state), given[:, :1])
            memory = self.moved(state[:, : self.size], state[:, self.size :], action)
            latent = latent_sample(self.prior(memory), given[:, 1:])
            state = ops.concat((memory, latent), 1)
            actions = put_row(actions, step, action)
            step = step + 1
            states = put_row(states, step, state)
        return states, actions
