"""Hindsight experience replay (HER, Andrychowicz et al. 2017, arXiv 1707.01495).

A window of an episode is learnt from as if a goal that it achieves later had been the desired one.
The layout of observations and the reward of a goal are those of `environment.Goal`.
"""

from typing import Any

from mindspore import Tensor, nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec, Goal
from mindspore_rl.errors import ConfigError


def later_goal(achieved: Tensor, ended: Tensor, noise: Tensor) -> Tensor:
    """Draws a goal from those that a window achieves until its episode ends ("future").

    Section 4.5 of the paper, with goals at most k steps later.

    Args:
        achieved: [N, k, size] float32, the goal that each step's true successor achieves.
        ended: [N, k] bool, terminated or truncated at that step.
        noise: [N] float32, uniform in [0, 1).

    Returns:
        goal: [N, size] float32, of a step between the first and the first that ended, or the last.
    """
    ends = ended.astype(achieved.dtype)
    same = (ops.cumsum(ends, 1) - ends < 0.5).astype(achieved.dtype)
    chosen = ops.floor(noise * same.sum(1)).astype("int32")
    return (ops.one_hot(chosen, ended.shape[1]).expand_dims(-1) * achieved).sum(1)


def reached(goal: Goal, obs: Tensor, desired: Tensor) -> Tensor:
    """Returns whether observations `[..., O]` achieve the desired goals `[..., size]`, [...]."""
    distance = obs[..., : goal.size] - desired
    return ops.square(distance).sum(-1) <= goal.tolerance**2


class Hindsight(nn.Cell):
    """Replaces the goals of windows of the replay.

    Args:
        spec: the environment's.
        config: has `her`, steps of a window, and `her_fraction`, the fraction of windows with
            other goals.
        steps: first steps of each window that are wanted.

    Raises:
        ConfigError: the environment has no goal, or windows are longer than an iteration or shorter
            than `steps`.
    """

    def __init__(self, spec: EnvironmentSpec, config: Any, steps: int = 1):
        super().__init__()
        if spec.goal is None:
            raise ConfigError(
                f"her={config.her}, and {spec.name} has no goal that can be replaced: its spec has "
                "no Goal; a goal environment of gymnasium has a Dict of observation, achieved_goal "
                "and desired_goal, and a compute_reward that tells only if the goal is near"
            )
        if not steps <= config.her <= config.num_steps:
            raise ConfigError(
                f"her={config.her} steps of a window, expected at least {steps} and at most "
                f"num_steps={config.num_steps}, those of an iteration: raise num_steps"
            )
        self.goal, self.steps, self.fraction = spec.goal, steps, config.her_fraction

    def construct(
        self,
        noise: Tensor,
        obs: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        final_obs: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Replaces the goals, and what follows from them.

        An episode that no longer terminates at a step counts as truncated there.

        Args:
            noise: [N, 2] float32, uniform in [0, 1).
            obs: [N, k, O] float32, windows of k steps.
            reward: [N, k] float32.
            terminated: [N, k] bool.
            truncated: [N, k] bool.
            final_obs: [N, k, O] float32.

        Returns:
            obs, reward, terminated, truncated, final_obs of the first `steps` steps.
        """
        goal, size = self.goal, self.goal.size
        ended = ops.logical_or(terminated, truncated)
        other = later_goal(final_obs[..., :size], ended, noise[:, 1])
        obs, final_obs = obs[:, : self.steps], final_obs[:, : self.steps]
        old = obs[..., size : 2 * size]
        replace = (noise[:, 0] < self.fraction).reshape((-1, 1))
        desired = ops.where(replace.expand_dims(-1), other.expand_dims(1), old)
        there = reached(goal, final_obs, desired)
        ends, stays = terminated[:, : self.steps], ended[:, : self.steps]
        if goal.ends:
            by_chance = ops.logical_and(ends, ops.logical_not(reached(goal, final_obs, old)))
            ends = ops.where(replace, ops.logical_or(there, by_chance), ends)
        now = ops.where(there, goal.reached, goal.missed)
        return (
            with_goal(obs, desired, size),
            ops.where(replace, now, reward[:, : self.steps]),
            ends,
            ops.logical_and(stays, ops.logical_not(ends)),
            with_goal(final_obs, desired, size),
        )


def with_goal(obs: Tensor, desired: Tensor, size: int) -> Tensor:
    """Returns observations `[N, k, O]` with the desired goals `[N, k, size]`."""
    if obs.shape[-1] == 2 * size:  # nothing but the goals
        return ops.concat((obs[..., :size], desired), -1)
    return ops.concat((obs[..., :size], desired, obs[..., 2 * size :]), -1)
