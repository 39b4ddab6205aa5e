"""A trained policy as a function of observations.

The training loop runs from a checkpoint up to where it passes an action to its environment: the
loop knows the arguments of `act`, whatever they are.
"""

import queue
import threading
import weakref
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_rl.environments.spaces import Box, Discrete, taken, within
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.operators import to_array
from mindspore_rl.trained.evaluate import Over, Played, build_trained

Given = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Observations `[B, ...]`, rewards `[B]` or `[B, A]`, and which episodes have ended, `[B]` bool."""


class Policy:
    """The policy of a run's checkpoint.

    A policy with memory (a recurrent one, a decision transformer) must be called once for each step
    of an episode, with rewards and ends; any other may be called at any time with any observation.

    Args:
        run_dir: a run directory with a checkpoint.
        which: checkpoint, see `best_checkpoint.chosen`.

    Attributes:
        remembers: whether actions depend on more than the observation.

    Raises:
        MsrlError: there is no such run or checkpoint.
    """

    def __init__(self, run_dir: Path, which: str = "last") -> None:
        mindspore_device.use()
        self._run_dir, self._which = run_dir, which
        plan = load_plan(run_dir)
        self._seed = plan.seed
        self._trained = build_trained(run_dir, plan.num_envs, plan.seed, which=which)
        self.spec = self._trained[0].spec
        self._rng = np.random.default_rng(plan.seed)
        self._episodes: _Episodes | None = None
        self.remembers = self._looks_back()

    def __call__(
        self, obs: Any, *, reward: Any = 0.0, ended: Any = False, sample: bool = False
    ) -> Any:
        """Chooses actions.

        Args:
            obs: one observation `[...]`, or `[B, ...]`.
            reward: of the previous step, in reward units; for a policy with memory.
            ended: whether the previous episode has ended, so that this is the first observation of
                a new one; for a policy with memory.
            sample: samples actions instead of taking the most likely.

        Returns: the action as the environment takes it, see `spaces.taken`; for a batch `[B]` or
            `[B, ...]`.

        Raises:
            MsrlError: the observation has another shape.
        """
        found, alone = self._checked(obs)
        rows = len(found)
        mindspore_device.use()
        if not self.remembers:
            loop = _Loop(self._trained, rows, self._drawn_seed())
            action = loop.first(found, sample)
        else:
            over = np.broadcast_to(np.asarray(ended, bool), (rows,))
            shape = (rows, *self.spec.agent_shape)
            gained = np.broadcast_to(np.asarray(reward, np.float32), shape)
            if self._episodes is None:
                trained = build_trained(self._run_dir, rows, self._seed, which=self._which)
                self._episodes = _Episodes(_Loop(trained, rows, self._drawn_seed()))
            action = self._episodes.next((found, gained, over), sample)
        action = taken(self.spec.action_space, action)
        return action[0] if alone else action

    def greedy_cell(self) -> nn.Cell:
        """Returns the policy as a cell: observations `[B, ...]` to greedy actions.

        Raises:
            MsrlError: the actor has no `act_greedily`, or has arguments other than the observation
                and single numbers.
        """
        actor = self._trained[0].actor
        if not hasattr(actor, "act_greedily"):
            raise MsrlError(
                f"{type(actor).__name__} has no act_greedily, the action that does not depend on "
                "chance: give it one, see docs/add_an_algorithm.md"
            )
        loop = _Loop(self._trained, self._trained[0].config.num_envs, self._seed)
        obs = self.some_obs(loop.num_envs)
        first, *others = loop.two_steps(obs)[0]
        if not np.array_equal(first, obs) or any(other.ndim for other in others):
            raise MsrlError(
                f"{type(actor).__name__}.act is not given the observation as it is and single "
                "numbers: do in the actor what the loop does to observations"
            )
        return _Greedy(actor, [Tensor(other) for other in others], self.spec.action_space)

    def reset(self) -> None:
        """Resets the memory: the next observations are the first ones of new episodes."""
        self._episodes = None

    def some_obs(self, rows: int) -> np.ndarray:
        """Makes random observations `[rows, ...]`, the same at every call."""
        rng, shape = np.random.default_rng(0), (rows, *self.spec.obs_shape)
        obs = rng.integers(0, 256, shape) if self.spec.images else rng.standard_normal(shape)
        return obs.astype(self.spec.obs_dtype)

    def _drawn_seed(self) -> int:
        return int(self._rng.integers(2**32))

    def _checked(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Returns observations `[B, ...]`, and whether `obs` was a single one."""
        shape = self.spec.obs_shape
        if self.spec.images and getattr(obs, "dtype", None) != np.uint8:
            kind = getattr(obs, "dtype", type(obs).__name__)
            raise MsrlError(f"obs is {kind}, expected images [C, H, W] of uint8, 0 to 255")
        try:
            found = np.asarray(obs, self.spec.obs_dtype)
        except (TypeError, ValueError) as error:
            raise MsrlError(f"obs is {type(obs).__name__}, expected numbers: {error}") from error
        alone = found.shape == shape
        if alone:
            found = found[None]
        if found.shape[1:] != shape or found.ndim != len(shape) + 1 or not len(found):
            raise MsrlError(
                f"obs has shape {np.shape(obs)}, expected {shape} of {self.spec.name}, or a batch "
                f"of them, {('B', *shape)}".replace("'", "")
            )
        if self._episodes is not None and len(found) != self._episodes.rows:
            raise MsrlError(
                f"obs is of {len(found)} episodes, and those under way are {self._episodes.rows}; "
                "call reset() before others begin"
            )
        return found, alone

    def _looks_back(self) -> bool:
        """Returns whether `act` gets other arguments at the second of two equal observations."""
        loop = _Loop(self._trained, self._trained[0].config.num_envs, self._seed)
        first, second = loop.two_steps(self.some_obs(loop.num_envs))
        return any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


class _Greedy(nn.Cell):
    """A cell from observations to greedy actions.

    Args:
        actor: with `act_greedily`.
        numbers: arguments of `act_greedily` after the observation.
        space: of the actions, which are converted as in `spaces.taken`.
    """

    def __init__(self, actor: Any, numbers: list[Tensor], space: Discrete | Box) -> None:
        super().__init__(auto_prefix=False)
        self.actor, self.numbers = actor, tuple(numbers)
        self.box = isinstance(space, Box)
        if isinstance(space, Box):
            self.low, self.high = map(Tensor, space.limits)
            self.whole, self.shape = space.whole, space.shape
            self.precise, self.kind = self.low.dtype, getattr(ms, space.dtype)
        self.set_train(False)

    def construct(self, obs: Tensor) -> Tensor:
        """See `Policy.greedy_cell`."""
        acted = self.actor.act_greedily(obs, *self.numbers)
        action = acted[0] if isinstance(acted, tuple) else acted
        if self.box:
            action = ops.cast(action, self.precise)
            action = within(action, self.low, self.high, self.whole, ops)
            action = ops.cast(action.reshape(action.shape[:-1] + self.shape), self.kind)
        return action


class _Loop(Played):
    """A checkpoint's training loop, whose environments the caller steps.

    Args:
        trained: see `build_trained`.
        rows: number of environments.
        seed: of actions, if they are sampled.
    """

    def __init__(self, trained: tuple[Any, dict[str, Any]], rows: int, seed: int) -> None:
        super().__init__(*trained, greedy=True)
        self.num_envs, self.seed = rows, seed
        self.returns, self.under_way = np.zeros(rows), np.ones(rows, bool)
        self._greedy, self._steps_left = self._greedily, 0
        self._first = np.empty(0, np.float32)
        self._asked: list[list[np.ndarray]] = []
        self.action = np.empty(0)
        self.episodes: _Exchange | None = None

    def _made_environment(self) -> None:
        """Makes no environment: the caller has them."""

    def run(self) -> None:
        """Runs the training loop."""
        self.trainer.train(self)

    def acts(self, sample: bool) -> None:
        """Sets whether the next action is sampled or greedy."""
        self._greedily = None if sample else self._greedy

    def first(self, obs: np.ndarray, sample: bool) -> np.ndarray:
        """Returns the actions for first observations."""
        self.acts(sample)
        self._play(obs, 1)
        return self.action

    def two_steps(self, obs: np.ndarray) -> list[list[np.ndarray]]:
        """Returns the arguments of `act` in two steps with the same observations."""
        self._play(obs, 2)
        return self._asked

    def _play(self, obs: np.ndarray, steps: int) -> None:
        self._first, self._steps_left = obs, steps
        try:
            self.run()
        except Over:
            return

    def agent_act(self, *args: Any) -> Any:
        """Records the arguments of `act`."""
        if self.episodes is None:
            self._asked.append([to_array(value) for value in args])
        return super().agent_act(*args)

    def env_reset(self) -> Tensor:
        """Returns the caller's first observations."""
        return Tensor(self._first if self.episodes is None else self.episodes.begun())

    def env_step(self, action: Tensor) -> tuple[Tensor, ...]:
        """Passes the action to the caller, and returns the caller's next observations."""
        self.action = to_array(action)
        no = np.zeros(self.num_envs, bool)
        if self.episodes is None:
            self._steps_left -= 1
            if not self._steps_left:
                raise Over
            shape = (self.num_envs, *self.trainer.spec.agent_shape)
            obs, reward, ended = self._first, np.zeros(shape, np.float32), no
        else:
            obs, reward, ended = self.episodes.after(self.action)
        return tuple(map(Tensor, (obs, obs, reward, ended, no)))


class _Episodes:
    """A training loop in a thread of its own, which waits for the next observations.

    Args:
        loop: to be run.
    """

    def __init__(self, loop: _Loop) -> None:
        self.rows = loop.num_envs
        self._loop = loop
        self._exchange = _Exchange()
        loop.episodes = self._exchange
        weakref.finalize(self, self._exchange.given.put, None)
        threading.Thread(target=_play, args=(loop, self._exchange), daemon=True).start()

    def next(self, given: Given, sample: bool) -> np.ndarray:
        """Returns the actions for the results of the last ones."""
        self._loop.acts(sample)
        self._exchange.given.put(given)
        found = self._exchange.actions.get()
        if isinstance(found, BaseException):
            raise found
        return found


class _Exchange:
    """The queues between the caller and the loop."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[Given | None] = queue.SimpleQueue()
        self.actions: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def begun(self) -> np.ndarray:
        """Waits for the first observations."""
        return self._take()[0]

    def after(self, action: np.ndarray) -> Given:
        """Passes an action to the caller, and waits for its results."""
        self.actions.put(action)
        return self._take()

    def _take(self) -> Given:
        found = self.given.get()
        if found is None:  # the caller has dropped its `_Episodes`
            raise Over
        return found


def _play(loop: _Loop, exchange: _Exchange) -> None:
    try:
        loop.run()
    except Over:
        return
    except Exception as error:  # noqa: BLE001  (raised by `_Episodes.next`)
        exchange.actions.put(error)
