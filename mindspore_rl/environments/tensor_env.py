"""Any environment with tensors in and out, in this process, for the reference and probes."""

import contextlib
from typing import Any, cast

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl.environments.error_context import FIELDS, GuardedVector
from mindspore_rl.environments.registry import make_graph, make_vector
from mindspore_rl.errors import EnvironmentFailure, described


class LocalEnvironment:
    """All environments in this process, of any kind, with tensors in and out.

    An error in a user's environment names the environment.
    """

    def __init__(self, name: str, in_graph: bool, env_indices: range, seed: int) -> None:
        self.in_graph = in_graph
        self.state: Any = None
        built = make_graph(name) if in_graph else make_vector(name, env_indices, seed)
        if not in_graph:
            built = GuardedVector(cast(Any, built), env_indices, lambda action: None)
        self._environment = cast(Any, built)
        self._name, self._size = name, len(env_indices)
        self.noise_size = self._environment.noise_size if in_graph else 0

    def reset(self, noise: Tensor | None) -> Tensor:
        """Returns: obs `[B, ...]`."""
        if self.in_graph:
            self.state, obs = self._call("reset", ("state", "obs"), noise)
            return obs
        return Tensor(self._environment.reset())

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Returns: next_obs, final_obs, reward, terminated, truncated."""
        if self.in_graph:
            self.state, *outcome = self._call("step", ("state", *FIELDS), self.state, action, noise)
            return tuple(outcome)
        return tuple(Tensor(part) for part in self._environment.step(action.asnumpy()))

    def _call(self, method: str, fields: tuple[str, ...], *arguments: Any) -> tuple[Tensor, ...]:
        """Calls a method of an environment in MindSpore's operators, and checks its results."""
        here = f"{self._name}: {method}"
        try:
            outcome = getattr(self._environment, method)(*arguments)
        except Exception as error:  # the user's own code
            raise EnvironmentFailure(f"{here} raised {described(error)}") from error
        if not isinstance(outcome, tuple) or len(outcome) != len(fields):
            raise EnvironmentFailure(
                f"{here} returned {_described(outcome)}, expected a tuple of {', '.join(fields)}"
            )
        spec = self._environment.spec
        shapes = {"state": (self._environment.state_size,), "reward": spec.agent_shape}
        for field, value in zip(fields, outcome, strict=True):
            ends = field in FIELDS[3:]
            shape = (self._size, *(() if ends else shapes.get(field, spec.obs_shape)))
            expected = f"{ms.bool_ if ends else ms.float32} {shape}"
            if _described(value) != expected:
                raise EnvironmentFailure(
                    f"{here}: {field} is {_described(value)}, expected {expected}"
                )
        return outcome

    def get_state(self) -> dict[str, np.ndarray] | None:
        """Returns the state by environment, for a checkpoint."""
        if self.in_graph:
            return {"state": self.state.asnumpy().copy()}
        return self._environment.get_state()

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restores a state from `get_state()`, after a reset."""
        if self.in_graph:
            self.state = Tensor(state["state"])
        else:
            self._environment.set_state(state)

    def picture(self) -> Any:
        """Returns a picture of the first environment, `[H, W, 3]` uint8, if it draws."""
        return None if self.in_graph else self._environment.render(0)

    def __enter__(self) -> "LocalEnvironment":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the environment; an earlier error takes precedence over one in closing."""
        with contextlib.suppress(*([EnvironmentFailure] if kind else [])):
            self.close()

    def close(self) -> None:
        """Closes a Python environment."""
        if not self.in_graph:
            self._environment.close()


class GrowingEnvironment:
    """Environments for programs of more and more of them.

    Programs share those in Python, since building is slow: each begins with what the environments
    show where the one before has left them. Compiled ones are each program's own.

    Args:
        name: the environment's name.
        in_graph: whether it is compiled.
        seed: the run's seed.
    """

    noise_size = 0

    def __init__(self, name: str, in_graph: bool, seed: int) -> None:
        self._name, self._in_graph, self._seed = name, in_graph, seed
        self._stack = contextlib.ExitStack()
        self._parts: list[LocalEnvironment] = []
        self._obs: list[np.ndarray] = []
        self._stops = [0]

    def grow(self, num_envs: int) -> "LocalEnvironment | GrowingEnvironment":
        """Returns `num_envs` environments for the next program, at least as many as before."""
        if self._in_graph:
            return LocalEnvironment(self._name, True, range(num_envs), self._seed)
        more = range(self._stops[-1], num_envs)
        part = self._stack.enter_context(LocalEnvironment(self._name, False, more, self._seed))
        self._parts.append(part)
        self._obs.append(part.reset(None).asnumpy())
        self._stops.append(num_envs)
        return self

    def reset(self, noise: None) -> Tensor:
        """Returns: obs `[B, ...]`."""
        return Tensor(np.concatenate(self._obs))

    def step(self, action: Tensor, noise: None) -> tuple[Tensor, ...]:
        """See `LocalEnvironment.step`."""
        shares = np.split(action.asnumpy(), self._stops[1:-1])
        outcomes = [
            [part.asnumpy() for part in env.step(Tensor(share), None)]
            for env, share in zip(self._parts, shares, strict=True)
        ]
        self._obs = [next_obs for next_obs, *_ in outcomes]
        return tuple(Tensor(np.concatenate(parts)) for parts in zip(*outcomes, strict=True))

    def __enter__(self) -> "GrowingEnvironment":
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        """Closes them."""
        return self._stack.__exit__(*error)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")
