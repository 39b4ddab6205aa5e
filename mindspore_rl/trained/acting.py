"""The plain loop of a trained policy: it acts and learns nothing."""

# ruff: noqa: D102  (the methods of `api.Msrl`)

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from mindspore_rl.api import bound_to_act
from mindspore_rl.datasets.windows import blank_transitions, blank_windows
from mindspore_rl.errors import ProgramError
from mindspore_rl.rl.operators import leaves
from mindspore_rl.rl.parameters import trainable
from mindspore_rl.rl.records import fields_of, is_record, made_of, values_of
from mindspore_rl.runtime.plain_loop import Environments, PlainLoop
from mindspore_rl.trained.hastened import Hastened


class Over(Exception):  # noqa: N818
    """Ends the loop; raised by its environments."""


class Acting(PlainLoop):
    """`msrl` of a training loop that resumes from a checkpoint, without learning.

    Gradients are zeros, a batch consists of copies of the last record, and updates do nothing.

    Args:
        trainer: with the parameters of the checkpoint.
        done: metadata of the checkpoint.
        environment: in which the loop acts.
        num_envs: number of environments.
        seed: of actions, if they are sampled.
        greedy: whether to act by `act_greedily`, if the actor has it; may be set between steps.
        asked: called with the arguments of `act` at every step.
    """

    def __init__(
        self,
        trainer: Any,
        done: dict[str, Any],
        environment: Environments,
        num_envs: int,
        seed: int,
        greedy: bool = True,
        asked: Callable[..., None] | None = None,
    ) -> None:
        numbers = range(done["iteration"], sys.maxsize)
        super().__init__(trainer, environment, numbers, range(num_envs), seed)
        self.greedy = greedy
        self._env_steps, self._asked = done["env_steps"], asked
        self._last: dict[str, tuple] = {}
        self._zeros: dict[tuple, tuple] = {}
        self._hastened = Hastened(trainer.actor, "act")
        self._greedily = greedily_of(trainer.actor)

    def agent_act(self, *args: Any, **named: Any) -> Any:
        """Replaces the action in the result of `act` by the greedy action."""
        if self._asked is not None:
            self._asked(*args, **named)
        acted = super().agent_act(*args, **named)
        if not self.greedy or self._greedily is None:
            return acted
        try:
            bound = bound_to_act(self.trainer.actor.act_greedily, args, named)
        except TypeError as error:
            raise ProgramError(
                f"{type(self.trainer.actor).__name__}.act_greedily is given what the loop gives to "
                f"msrl.agent_act, {len(args) + len(named)} arguments, and does not take them "
                f"({error}): give it the parameters of act but noise, or play with --sample"
            ) from error
        found = self._greedily(*bound.args, **bound.kwargs)
        return with_action(acted, found[0] if isinstance(found, tuple) else found)

    def _act(self, *args: Any, **named: Any) -> Any:
        return self._hastened(*args, **named)

    def env_steps(self) -> Tensor:
        return Tensor(np.float32(self._env_steps))

    def _keep(self, values: tuple, capacity: int, into: str) -> None:
        self._last[into] = values

    def _draw(self, count: int, by: str, steps: int, of: str) -> tuple[Tensor, ...]:
        each = self._each(count)
        columns = tuple(ops.concat([column] * each) for column in self._last[of])
        if steps:
            columns = tuple(ops.stack([column] * steps, 1) for column in columns)
        rows = each * self.num_envs
        weights = Tensor(np.zeros(rows, np.int32)), Tensor(np.ones(rows, np.float32))
        return (*columns, *weights) if by == "priority" else columns

    def replay_update(self, ids: Tensor, priorities: Tensor, of: str = "") -> None:
        """Does nothing: a draw does not depend on priorities."""

    def dataset_windows(self, path: str, count: int, length: int) -> tuple[Tensor, ...]:
        """Returns blank windows; the data set need not exist."""
        shape = self._each(count) * self.num_envs, length
        return tuple(map(Tensor, blank_windows(self.trainer.spec, *shape)))

    def dataset_transitions(self, path: str, count: int) -> tuple[Tensor, ...]:
        """Returns blank transitions; the data set need not exist."""
        rows = self._each(count) * self.num_envs
        return tuple(map(Tensor, blank_transitions(self.trainer.spec, rows)))

    def gradient(self, loss: Callable, network: Any, *args: Any, rows: bool = False) -> tuple:
        """Returns zeros with the shapes of gradients and losses."""
        key = (loss, *map(id, trainable(network)))
        found = self._zeros.get(key)
        if found is None:
            told = tuple(map(ops.zeros_like, leaves(loss(*args))))
            means = tuple(Tensor(np.float32(0)) for _ in told)
            found = tuple(ops.zeros_like(p) for p in trainable(network)), means, told
        if inspect.ismethod(loss):  # a function inside `learn` is another one in every call
            self._zeros[key] = found
        return found[: 3 if rows else 2]

    def update(self, method: Callable, *args: Any) -> None:
        """Does nothing: the parameters stay those of the checkpoint."""

    def boundary(self, name: str, value: Any) -> Any:
        return value

    def report(self, metrics: dict[str, Any]) -> None:
        """Does nothing: metrics are those of learning."""


def greedily_of(actor: Any) -> Hastened | None:
    """Returns an actor's `act_greedily`, if it has one."""
    return Hastened(actor, "act_greedily") if hasattr(actor, "act_greedily") else None


def with_action(acted: Any, action: Any) -> Any:
    """Replaces the action in a result of `act`: the part with this name, else the first one."""
    if is_record(acted):
        names = fields_of(type(acted))
        parts = dict(zip(names, values_of(acted), strict=True))
        return made_of(type(acted), with_action(parts, action).values())
    if isinstance(acted, dict):
        return acted | {"action" if "action" in acted else next(iter(acted)): action}
    return (action, *acted[1:]) if isinstance(acted, tuple) else action
