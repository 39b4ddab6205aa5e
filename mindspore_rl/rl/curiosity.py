"""Bonuses for what an agent cannot predict yet."""

from mindspore import Tensor, float32, nn, ops

from mindspore_rl.rl.action_distributions import categorical_log_prob
from mindspore_rl.rl.networks import MLP


class Curiosity(nn.Cell):
    """The intrinsic curiosity module (Pathak et al. 2017, arXiv 1705.05363), discrete actions.

    Features of observations from which a network tells the action between two of them, and a model
    that predicts the features after an action: features hold what actions change, and the error of
    the prediction is the bonus.

    Args:
        size: numbers of an observation.
        hidden: widths of the hidden layers of each of the three networks.
        features: features of an observation.
        num_actions: number of actions.
        seed: the job's seed.
        indices: three numbers, each unique to its network in the job.
        forward_coef: weight beta of the model's loss, in [0, 1]; that of the actions has the rest.
    """

    def __init__(
        self,
        size: int,
        hidden: tuple,
        features: int,
        num_actions: int,
        seed: int,
        indices: tuple,
        forward_coef: float,
    ):
        super().__init__()
        self.num_actions, self.forward_coef = num_actions, forward_coef
        self.features, self.inverse, self.model = (
            MLP(sizes[0], hidden, sizes[1], 1.0, seed, index, activation="relu")
            for sizes, index in zip(
                ((size, features), (2 * features, num_actions), (features + num_actions, features)),
                indices,
                strict=True,
            )
        )

    def both(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the model's error and the module's loss of steps.

        ``L_F = |model(phi(s), a) - phi(s')|^2 / 2`` (eq. 6, which is also the bonus), and
        ``(1 - beta) L_I + beta L_F`` (eq. 7), where L_I is the negated log-probability of the
        action.

        Args:
            obs: [N, size] float32.
            action: [N] int32.
            next_obs: [N, size] float32, after the action.

        Returns:
            (error, loss): each [N] float32.
        """
        before, after = self.features(obs), self.features(next_obs)
        taken = ops.one_hot(action, self.num_actions).astype(float32)
        error = 0.5 * ops.square(self.model(ops.cat((before, taken), -1)) - after).sum(-1)
        loss = -categorical_log_prob(self.inverse(ops.cat((before, after), -1)), action)
        return error, (1.0 - self.forward_coef) * loss + self.forward_coef * error
