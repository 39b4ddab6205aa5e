"""The loop of a trained policy on random observations: whether it acts by them alone."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.api import bound_to_act
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.rl.operators import leaves, to_array
from mindspore_rl.rl.parameters import named_parameters, set_parameter
from mindspore_rl.trained.acting import Acting, Over, greedily_of

STEPS = 3


class Still:
    """Environments whose observations stay the same.

    Args:
        obs: `[B, ...]`.
        agent_shape: of a reward.
        steps: number of steps after which the loop ends.

    Attributes:
        action: the last actions.
    """

    noise_size = 0

    def __init__(self, obs: np.ndarray, agent_shape: tuple, steps: int) -> None:
        self._obs, self._left, self.action = obs, steps, np.empty(0)
        rows = len(obs)
        self._outcome = obs, np.zeros((rows, *agent_shape), np.float32), np.zeros(rows, bool)

    def reset(self, noise: Tensor | None) -> Tensor:
        """Returns the observations."""
        return Tensor(self._obs)

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Stores the action."""
        self.action = to_array(action)
        self._left -= 1
        if not self._left:
            raise Over
        return outcome(*self._outcome)


class Moving(Still):
    """Environments with other observations in every step, of which every second episode ends.

    Attributes:
        shown: the observations of each step.
        actions: those of each step.
    """

    def __init__(self, spec: EnvironmentSpec, rows: int) -> None:
        self.shown = [some_obs(spec, rows, seed) for seed in range(STEPS)]
        self.actions: list[np.ndarray] = []
        super().__init__(self.shown[0], spec.agent_shape, STEPS)

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Stores the action."""
        self.actions.append(to_array(action))
        super().step(action, noise)
        number, (_, reward, _) = len(self.actions), self._outcome
        return outcome(self.shown[number], reward, np.arange(len(reward)) % 2 == number % 2)


def outcome(obs: np.ndarray, reward: np.ndarray, ended: np.ndarray) -> tuple[Tensor, ...]:
    """Returns the results of a step; no episode is truncated."""
    return tuple(map(Tensor, (obs, obs, reward, ended, np.zeros(len(ended), bool))))


def some_obs(spec: EnvironmentSpec, rows: int, seed: int = 0) -> np.ndarray:
    """Makes random observations `[rows, ...]`, the same at every call with a seed."""
    rng, shape = np.random.default_rng(seed), (rows, *spec.obs_shape)
    obs = rng.integers(0, 256, shape) if spec.images else rng.standard_normal(shape)
    if size := spec.mask_size:  # one action at least is valid
        obs[..., -size:] = rng.random((*shape[:-1], size)) < 0.5
        obs[..., -1] = 1.0
    return obs.astype(spec.obs_dtype)


def acts_alone(trainer: Any, done: dict[str, Any], rows: int) -> Callable[[Tensor], Any] | None:
    """Returns the actor's greedy actions of observations, if the loop gives them as they are.

    Then a loop without `learn`, and without the random numbers of `act`, plays the same episodes.
    None: actions depend on more than the observation, or the loop changes observations or actions.

    Args:
        trainer: with the parameters of a checkpoint; they stay as they are.
        done: metadata of the checkpoint.
        rows: number of environments.
    """
    greedily = greedily_of(trainer.actor)
    if greedily is None:
        return None
    parameters = dict(named_parameters(trainer, "state"))
    before = {name: to_array(parameter) for name, parameter in parameters.items()}
    moving = Moving(trainer.spec, rows)
    asked: list[tuple[tuple, dict[str, Any]]] = []
    loop = Acting(
        trainer, done, moving, rows, 0, asked=lambda *args, **named: asked.append((args, named))
    )
    with contextlib.suppress(Over):
        loop.run()
    changed = [name for name, value in before.items() if not same(value, parameters[name])]
    for name in changed:
        set_parameter(parameters[name], before[name])
    if changed or len(asked) != STEPS:
        return None
    for (args, named), obs in zip(asked, moving.shown, strict=True):
        given = [*leaves(args), *leaves(named)]
        if len(given) != 1 or not args or not same(args[0], obs):
            return None
        if (args[1:], named) != (asked[0][0][1:], asked[0][1]):
            return None

    def act(found: Tensor) -> Any:
        bound = bound_to_act(trainer.actor.act_greedily, (found, *args[1:]), named)
        acted = greedily(*bound.args, **bound.kwargs)
        return acted[0] if isinstance(acted, tuple) else acted

    pairs = zip(moving.shown, moving.actions, strict=True)
    return act if all(same(act(Tensor(obs)), action) for obs, action in pairs) else None


def same(one: Any, other: Any) -> bool:
    """Returns whether two arrays have the same numbers."""
    return np.array_equal(to_array(one), to_array(other))
