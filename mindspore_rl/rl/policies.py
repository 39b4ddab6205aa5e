"""Stochastic policies: their actions from the outputs of a network, and values beside them."""

from mindspore import Parameter, Tensor, float32, nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.rl.action_distributions import (
    categorical_entropy,
    categorical_kl,
    categorical_log_prob,
    categorical_sample_with_log_prob,
    normal_entropy,
    normal_kl,
    normal_log_prob,
    normal_sample,
)
from mindspore_rl.rl.action_masks import features, masked
from mindspore_rl.rl.networks import RunningMeanStd, actor_critic, torso_shape
from mindspore_rl.rl.popart import PopArt
from mindspore_rl.rl.recurrent import recurrent_core


class StochasticPolicy(nn.Cell):
    """Draws actions by the outputs of a network, its head `[..., size]`.

    Discrete actions: logits. Continuous actions: the mean of a normal distribution, whose deviation
    does not depend on the observation. `with_deviation` puts it behind the mean, `[..., 2 * size]`,
    so that two policies can be compared; the other methods take such a head as well.

    Args:
        space: the environment's actions.

    Attributes:
        discrete: whether the actions are discrete.
        size: how many there are, or components of a continuous one.
        noise_size: uniform numbers that a draw takes, see `draw`.
        log_std: `[size]`, the deviation's logarithm, a Parameter; discrete actions have none.
    """

    def __init__(self, space: Discrete | Box) -> None:
        super().__init__()
        self.discrete = isinstance(space, Discrete)
        self.size = space.n if isinstance(space, Discrete) else space.size
        self.noise_size = 1 if self.discrete else 2 * self.size
        if not self.discrete:
            self.log_std = Parameter(ops.zeros((self.size,), float32), name="log_std")

    def draw(self, head: Tensor, noise: Tensor) -> tuple:
        """Returns: actions `[...]` or `[..., size]`, and their log-probabilities `[...]`.

        Args:
            head: `[..., size]` float32.
            noise: `[..., noise_size]` float32, uniform in [0, 1) with at most 24 bits.
        """
        if self.discrete:
            return categorical_sample_with_log_prob(head, noise)
        mean = self.mean(head)
        action = normal_sample(mean, self.log_std, noise)
        return action, normal_log_prob(mean, self.log_std, action)

    def log_prob(self, head: Tensor, action: Tensor) -> Tensor:
        """Returns: log-probabilities `[...]` of actions `[...]` or `[..., size]`, nats."""
        if self.discrete:
            return categorical_log_prob(head, action)
        return normal_log_prob(self.mean(head), self.log_std, action)

    def entropy(self, head: Tensor) -> Tensor:
        """Returns: `[...]`, nats."""
        if self.discrete:
            return categorical_entropy(head)
        return normal_entropy(self.log_std) + 0.0 * head[..., 0]

    def likeliest(self, head: Tensor) -> Tensor:
        """Returns: the most likely actions `[...]`, or the mean `[..., size]`."""
        return head.argmax(-1).astype("int32") if self.discrete else self.mean(head)

    def mean(self, head: Tensor) -> Tensor:
        """Returns: the mean `[..., size]` of a head of continuous actions."""
        return head if head.shape[-1] == self.size else head[..., : self.size]

    def with_deviation(self, head: Tensor) -> Tensor:
        """Returns: logits, or mean and log_std `[..., 2 * size]`."""
        return head if self.discrete else ops.concat((head, self.log_std + 0.0 * head), -1)

    def divergence(self, old: Tensor, head: Tensor) -> Tensor:
        """Returns: KL `[...]` of the policy of a head from that of an old one, nats.

        Args:
            old: logits, or mean and log_std `[..., 2 * size]`.
            head: as `old`.
        """
        if self.discrete:
            return categorical_kl(old, head)
        k = self.size
        return normal_kl(old[..., :k], old[..., k:], head[..., :k], head[..., k:])


class ActorCritic(StochasticPolicy):
    """A policy and a value function, which share a recurrent layer and, if asked, the torso.

    State: a tuple of the recurrent layer's arrays `[..., state_size]`; () without one.

    Args:
        spec: the environment's spec.
        torso: see `networks.network`.
        hidden: widths of the dense hidden layers.
        seed: the job's seed.
        share_torso: see `networks.actor_critic`.
        state_size: units of the recurrent layer of torso=gru or lstm.
        normalise_obs: whether observations are normalised by `obs_statistics`.
        popart: weight of a batch in the statistics that scale values; 0: none are scaled.

    Attributes:
        core: the recurrent layer, see `recurrent.recurrent_core`.
        shares_torso: whether policy and value have one torso.
        mask_size: entries of the action mask in an observation; 0: it has none.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        torso: str,
        hidden: tuple,
        seed: int,
        share_torso: bool | None = None,
        *,
        state_size: int = 0,
        normalise_obs: bool = False,
        popart: float = 0.0,
    ) -> None:
        super().__init__(spec.action_space)
        self.normalises, self.mask_size = normalise_obs, spec.mask_size
        self.obs_shape = torso_shape(torso, spec, normalise_obs)
        self.core = recurrent_core(torso, spec, state_size, seed, 3)
        self.torso, self.policy, self.critic = actor_critic(
            torso, spec, hidden, self.size, seed, share_torso, self.core.size
        )
        self.shares_torso = not isinstance(self.torso, nn.Identity)
        if normalise_obs:
            shape = self.obs_shape if self.mask_size else spec.obs_shape
            self.obs_statistics = RunningMeanStd(shape)
        self.scales_values = popart > 0
        if self.scales_values:
            self.popart = PopArt(popart)

    def flat(self, obs: Tensor) -> Tensor:
        """Returns: obs `[..., *spec.obs_shape]` as `[n, ...]`, the torsos' input."""
        obs = features(obs, self.mask_size)
        if self.normalises:
            obs = self.obs_statistics.normalise(obs)
        return obs.reshape((-1, *self.obs_shape))

    def value(self, shared: Tensor) -> Tensor:
        """Returns: values `[n]` of the torso's output `[n, ...]`, reward units."""
        value = self.critic(shared).reshape(-1)
        return self.popart.scaled(value) if self.scales_values else value

    def values(self, obs: Tensor, *state: Tensor) -> Tensor:
        """Returns: values `[T, B]` of obs `[T, B, ...]`, reward units."""
        inputs, _ = self.core(self.flat(obs), state)
        return self.value(self.torso(inputs)).reshape(obs.shape[:2])

    def final_values(self, obs: Tensor, final_obs: Tensor, *state: Tensor) -> Tensor:
        """Returns: values `[T, B]` of final_obs, which follow obs and its state."""
        _, state = self.core(self.flat(obs), state)
        return self.values(final_obs, *state)

    def sample(self, obs: Tensor, state: tuple, noise: Tensor) -> tuple:
        """Returns: action and its log-probability `[B]` for obs `[B, ...]`, then the new state.

        With a shared torso, which costs the most, the value `[B]` comes before the state.
        """
        inputs, state = self.core(self.flat(obs), state)
        shared = self.torso(inputs)
        head = masked(self.policy(shared), obs, self.mask_size)
        if self.shares_torso:
            state = (self.value(shared), *state)
        return self.draw(head, noise) + state

    def evaluate(self, obs: Tensor, action: Tensor, *memory: Tensor) -> tuple:
        """Returns: log-probability, entropy and unscaled value `[n]` of obs `[n, ...]`, actions.

        With a recurrent layer, of segments with ended and state: all are `[n, steps, ...]`.
        """
        shared = self.torso(self.core.unrolled(self.flat(obs), *memory))
        head = masked(self.policy(shared), obs, self.mask_size)
        value = self.critic(shared).reshape(-1)
        if memory:
            shape = memory[0].shape
            head, value = head.reshape((*shape, -1)), value.reshape(shape)
        return self.log_prob(head, action), self.entropy(head), value

    def head(self, obs: Tensor, state: tuple = ()) -> Tensor:
        """Returns: `[n, size]` of obs `[..., *spec.obs_shape]` and their state."""
        inputs, _ = self.core(self.flat(obs), state)
        return masked(self.policy(self.torso(inputs)), obs, self.mask_size)
