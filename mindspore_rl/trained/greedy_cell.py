"""A trained policy as one cell, to be exported: from observations to greedy actions."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_rl.api import bound_to_act
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Box, within
from mindspore_rl.errors import MsrlError
from mindspore_rl.rl.operators import leaves, put_into, to_array

Asked = tuple[tuple, dict[str, Any]]
"""Positional and named arguments of `msrl.agent_act`."""


class GreedyCell(nn.Cell):
    """A cell from observations `[B, ...]` to greedy actions, then the next recurrent state.

    Args:
        actor: of a trained policy, with `act_greedily`.
        spec: of its environment.
        obs: `[B, ...]`, the observations of two steps of a training loop.
        asked: the arguments of `act` in these two steps.
        of_more: its arguments in the first step with another number of observations.

    Attributes:
        state_shapes: of each array of the recurrent state, `[B, ...]` without B; none without one.

    Raises:
        MsrlError: the actor has no `act_greedily`, or its actions depend on more than the
            observation, what is the same for all and a recurrent state that begins with zeros.
    """

    def __init__(
        self, actor: Any, spec: EnvironmentSpec, obs: np.ndarray, asked: list[Asked], of_more: Asked
    ) -> None:
        super().__init__(auto_prefix=False)
        name = type(actor).__name__
        if not hasattr(actor, "act_greedily"):
            raise MsrlError(
                f"{name} has no act_greedily, the action that does not depend on chance: give it "
                "one, see docs/add_an_algorithm.md"
            )
        (args, named), (later_args, later) = asked
        keys = [key for key in named if differ(named[key], later[key])]
        (first, *others), (_, *same) = (
            _arrays((args, {key: value for key, value in named.items() if key not in keys}))
            for args, named in (asked[0], of_more)
        )
        if not np.array_equal(first, obs) or not all(map(np.array_equal, others, same)):
            raise MsrlError(
                f"{name}.act is not given the observation as it is and, beside it, what is the "
                "same for all: do in the actor what the loop does to observations"
            )
        state = _arrays(named[keys[0]]) if keys else []
        self.noise_shape = (*spec.agent_shape, actor.noise_size) if actor.noise_size else ()
        places: list[int] = []
        if keys:
            noise = {"noise": self._noise(len(obs))} if self.noise_shape else {}
            found = _arrays(actor.act(*args, **named, **noise))
            places = [_place(found, part) for part in _arrays(later[keys[0]])]
        if differ(args, later_args) or keys[1:] or -1 in places or any(map(np.any, state)):
            raise MsrlError(
                f"the actions of {name} depend on more than the observation and one recurrent "
                "state (earlier steps, rewards); the state begins with zeros, is given to act by "
                "its name and returned by it. Use load(...).policy"
            )
        self.actor, self.key, self.places = actor, keys[0] if keys else "", tuple(places)
        self.state_shapes = [part.shape[1:] for part in state]
        bound = bound_to_act(actor.act_greedily, _tensors(args), _tensors(named))
        self.others = bound.args[1:]
        self.named = {key: value for key, value in bound.kwargs.items() if key not in keys}
        space = spec.action_space
        self.box = isinstance(space, Box)
        if isinstance(space, Box):
            self.low, self.high = map(Tensor, space.limits)
            self.whole, self.shape = space.whole, space.shape
            self.precise, self.kind = self.low.dtype, getattr(ms, space.dtype)
        self.set_train(False)

    def construct(self, obs: Tensor, *state: Tensor) -> Any:
        """See the class."""
        if not self.key:
            return self._action(self.actor.act_greedily(obs, *self.others, **self.named))
        remembered = {self.key: state}
        acted = self.actor.act_greedily(obs, *self.others, **self.named, **remembered)
        outcome: tuple[Tensor, ...] = (self._action(acted),)
        if self.noise_shape:
            remembered["noise"] = self._noise(obs.shape[0])
        found = self.actor.act(obs, *self.others, **self.named, **remembered)
        for place in self.places:
            outcome += (found[place],)
        return outcome

    def _action(self, acted: Any) -> Tensor:
        """Returns the action of a result of `act_greedily`, as in `spaces.taken`."""
        action = acted[0] if isinstance(acted, tuple) else acted
        if self.box:
            action = ops.cast(action, self.precise)
            action = within(action, self.low, self.high, self.whole, ops)
            action = ops.cast(action.reshape(action.shape[:-1] + self.shape), self.kind)
        return action

    def _noise(self, rows: int) -> Tensor:
        """Returns noise for `act`, whose recurrent state does not depend on it."""
        return ops.zeros((rows, *self.noise_shape), ms.float32)


def _arrays(value: Any) -> list[np.ndarray]:
    return [to_array(leaf) for leaf in leaves(value)]


def differ(value: Any, other: Any) -> bool:
    """Returns whether arguments, in tuples and dictionaries alike, are other values."""
    pairs = zip(_arrays(value), _arrays(other), strict=True)
    return not all(np.array_equal(*pair) for pair in pairs)


def _place(found: list[np.ndarray], part: np.ndarray) -> int:
    """Returns the place among arrays of one that is equal to `part`; -1: there is none."""
    for place, one in enumerate(found):
        if one.shape == part.shape and np.allclose(one, part, atol=1e-6):
            return place
    return -1


def _tensors(value: Any) -> Any:
    return put_into(value, map(Tensor, _arrays(value)))
