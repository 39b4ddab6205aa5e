"""A trained policy as a function of observations.

The training loop runs from a checkpoint up to where it passes an action to its environment: the
loop knows the arguments of `act`, whatever they are.
"""

import contextlib
import queue
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.environments.action_mask import checked_mask
from mindspore_rl.environments.options import MASK
from mindspore_rl.environments.spaces import taken
from mindspore_rl.environments.sync_vector import shape_of
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.operators import to_array
from mindspore_rl.trained.acting import Acting, Over
from mindspore_rl.trained.evaluate import build_trained
from mindspore_rl.trained.greedy_cell import GreedyCell, differ
from mindspore_rl.trained.still import Still, outcome, some_obs

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
        self,
        obs: Any,
        *,
        reward: Any = 0.0,
        ended: Any = False,
        sample: bool = False,
        action_mask: Any = None,
    ) -> Any:
        """Chooses actions.

        Args:
            obs: one observation as the environment gives it (of a Dict a mapping, of a Discrete
                space a whole number, an image), or a batch of them, `[B, ...]` in each part; or,
                with precedence, arrays as the network takes them, see `Run.make_env`.
            reward: of the previous step, in reward units; for a policy with memory.
            ended: whether the previous episode has ended, so that this is the first observation of
                a new one; for a policy with memory.
            sample: samples actions instead of taking the most likely.
            action_mask: `[n]` or `[B, n]`, the environment's, if it is not in `obs`.

        Returns: the action as the environment takes it, see `spaces.taken`; for a batch `[B]` or
            `[B, ...]`.

        Raises:
            MsrlError: the observation is none of the environment's.
        """
        found, alone = self._checked(obs, action_mask)
        rows = len(found)
        mindspore_device.use()
        if not self.remembers:
            action = self._play(found, 1, self._drawn_seed(), greedy=not sample)
        else:
            over = np.broadcast_to(np.asarray(ended, bool), (rows,))
            shape = (rows, *self.spec.agent_shape)
            gained = np.broadcast_to(np.asarray(reward, np.float32), shape)
            if self._episodes is None:
                trained = build_trained(self._run_dir, rows, self._seed, which=self._which)
                self._episodes = _Episodes(trained, rows, self._drawn_seed())
            action = self._episodes.next((found, gained, over), sample)
        action = taken(self.spec.action_space, action)
        return action[0] if alone else action

    def greedy_cell(self) -> GreedyCell:
        """Returns the policy as a cell, see `GreedyCell`. Raises: MsrlError."""
        rows = self._trained[0].config.num_envs
        obs, more = self.some_obs(rows), self.some_obs(rows + 1)
        asked, of_more = self._asked(obs), self._asked(more)[0]
        return GreedyCell(self._trained[0].actor, self.spec, obs, asked, of_more)

    def reset(self) -> None:
        """Resets the memory: the next observations are the first ones of new episodes."""
        self._episodes = None

    def some_obs(self, rows: int) -> np.ndarray:
        """Makes random observations `[rows, ...]`, the same at every call."""
        return some_obs(self.spec, rows)

    def _play(self, obs: np.ndarray, steps: int, seed: int, **options: Any) -> np.ndarray:
        """Runs the loop for some steps with the same observations. Returns: the last actions."""
        still = Still(obs, self.spec.agent_shape, steps)
        with contextlib.suppress(Over):
            Acting(*self._trained, still, len(obs), seed, **options).run()
        return still.action

    def _asked(self, obs: np.ndarray) -> list[tuple[tuple, dict[str, Any]]]:
        """Returns the arguments of `act` in two steps with the same observations."""
        found: list[tuple[tuple, dict[str, Any]]] = []

        def asked(*args: Any, **named: Any) -> None:
            found.append((args, named))

        self._play(obs, 2, self._seed, asked=asked)
        return found

    def _drawn_seed(self) -> int:
        return int(self._rng.integers(2**32))

    def _checked(self, obs: Any, mask: Any) -> tuple[np.ndarray, bool]:
        """Returns observations `[B, ...]`, and whether `obs` was a single one."""
        found, alone = self._arrays(obs) if self._is_array(obs, mask) else self._flat(obs, mask)
        if self._episodes is not None and len(found) != self._episodes.rows:
            raise MsrlError(
                f"obs is of {len(found)} episodes, and those under way are {self._episodes.rows}; "
                "call reset() before others begin"
            )
        return found, alone

    def _is_array(self, obs: Any, mask: Any) -> bool:
        """Returns whether observations are arrays as the network takes them."""
        layout, shape = self.spec.layout, self.spec.obs_shape
        if layout is None or (layout.kind == "box" and not self.spec.action_mask):
            return True
        if mask is not None or isinstance(obs, Mapping | tuple):
            return False
        found = shape_of(obs)
        if layout.kind == "discrete" and found == shape and np.asarray(obs).dtype.kind in "iu":
            if np.count_nonzero(obs) != 1 or np.max(obs) != 1:
                return False
            raise MsrlError(
                f"obs {obs} is both an observation of {shape[0]} numbers and a batch of {shape[0]} "
                f"numbers of {layout}; as the first give float32, as the second call with fewer"
            )
        return found == shape or found[1:] == shape

    def _flat(self, obs: Any, mask: Any) -> tuple[np.ndarray, bool]:
        """Returns the environment's own observations as `_checked` does."""
        layout, size = self.spec.layout, self.spec.mask_size
        assert layout is not None
        if size and isinstance(obs, Mapping) and MASK in obs and MASK not in layout.keys:
            obs, mask = {key: obs[key] for key in obs if key != MASK}, obs[MASK]
        if (mask is None) != (not size):
            what = "no action_mask" if size else "an action_mask, and the policy takes none"
            raise MsrlError(
                f"obs comes with {what}; {self.spec.name} has {layout} and "
                f"{size or 'no'} masked actions"
            )
        try:
            found, alone = layout.flat(obs)
        except MsrlError as error:
            raise MsrlError(
                f"{error}; or an array of shape {self.spec.obs_shape}, see Run.make_env"
            ) from error
        if not size:
            return found, alone
        given = [mask] if alone else list(np.atleast_1d(mask))
        if len(given) != len(found):
            raise MsrlError(f"{len(given)} action masks, expected {len(found)}, one for each obs")
        try:
            masks = np.stack([checked_mask(one, size, False, "action_mask") for one in given])
        except ValueError as error:
            raise MsrlError(str(error)) from error
        return np.concatenate([found.reshape(len(found), -1), masks], 1), alone

    def _arrays(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Returns arrays as `_checked` does."""
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
        return found, alone

    def _looks_back(self) -> bool:
        """Returns whether `act` gets other arguments at the second of two equal observations."""
        return differ(*self._asked(self.some_obs(self._trained[0].config.num_envs)))


class _Exchange:
    """Environments that the caller steps from another thread, through two queues."""

    noise_size = 0

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[Given | None] = queue.SimpleQueue()
        self.actions: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def reset(self, noise: Tensor | None) -> Tensor:
        """Waits for the first observations."""
        return Tensor(self._take()[0])

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Passes an action to the caller, and waits for its results."""
        self.actions.put(to_array(action))
        return outcome(*self._take())

    def _take(self) -> Given:
        found = self.given.get()
        if found is None:  # the caller has dropped its `_Episodes`
            raise Over
        return found


class _Episodes:
    """A training loop in a thread of its own, which waits for the next observations."""

    def __init__(self, trained: tuple[Any, dict[str, Any]], rows: int, seed: int) -> None:
        self.rows = rows
        self._exchange = _Exchange()
        self._loop = Acting(*trained, self._exchange, rows, seed)
        weakref.finalize(self, self._exchange.given.put, None)
        threading.Thread(target=_play, args=(self._loop, self._exchange), daemon=True).start()

    def next(self, given: Given, sample: bool) -> np.ndarray:
        """Returns the actions for the results of the last ones."""
        self._loop.greedy = not sample
        self._exchange.given.put(given)
        found = self._exchange.actions.get()
        if isinstance(found, BaseException):
            raise found
        return found


def _play(loop: Acting, exchange: _Exchange) -> None:
    try:
        loop.run()
    except Over:
        return
    except Exception as error:  # noqa: BLE001  (raised by `_Episodes.next`)
        exchange.actions.put(error)
