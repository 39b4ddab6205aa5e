"""`msrl envs check NAME`: checks that an environment keeps the interface's promises."""

import dataclasses
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mindspore_rl.environments import registry
from mindspore_rl.environments.action_mask import valid_actions, wrong_mask
from mindspore_rl.environments.environment import EnvironmentSpec, VectorEnvironment
from mindspore_rl.environments.error_context import FIELDS
from mindspore_rl.environments.finite_check import all_trainable, untrainable
from mindspore_rl.environments.spaces import Discrete, within
from mindspore_rl.environments.sync_vector import RAISED, raised
from mindspore_rl.errors import EnvironmentFailure, MsrlError

NUM_ENVS = 4
MAX_STEPS = 1000
COMPARED_STEPS = 200
TOLERANCE = 1e-5
SHORT = 10  # a short task may end by itself at its limit, as the probes do

Step = tuple[np.ndarray, ...]
Steps = Sequence[Step]


class _Told:
    """A vector of environments that reports every step and takes valid actions only."""

    def __init__(self, env: VectorEnvironment, tell: Callable[[], None]) -> None:
        self._env, self._tell = env, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> np.ndarray:
        """See `VectorEnvironment`."""
        self._obs = self._env.reset()
        return self._obs

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """See `VectorEnvironment`."""
        self._obs = self._env.set_state(state)
        return self._obs

    def step(self, action: np.ndarray) -> Step:
        """See `VectorEnvironment`."""
        self._tell()
        outcome = self._env.step(valid_actions(self._env.spec, self._obs, action))
        self._obs = outcome[0] if isinstance(outcome, tuple) and outcome else self._obs
        return outcome


def check(name: str, tell: Callable[[int, int], None] = lambda done, most: None) -> list[str]:
    """Runs an environment with random actions and checks everything that the interface promises.

    Args:
        name: as for `by_name.spec`.
        tell: called with the number of steps taken and the largest number there will be.

    Returns:
        The findings, in words; empty if the environment conforms.

    Raises:
        UnknownEnvironmentError: there is no environment of this name.
    """
    try:
        spec = registry.spec(name)
        found = (_check_graph if spec.in_graph else _check_vector)(name, spec, tell)
        return [*found, *filter(None, [registry.warning(name)])]
    except EnvironmentFailure as failure:
        return [str(failure)]
    except MsrlError:
        raise
    except RAISED as error:  # the environment's own code
        place = traceback.extract_tb(error.__traceback__)[-1]
        return [f"it {raised(error)} ({place.filename}, line {place.lineno})"]


def random_actions(spec: EnvironmentSpec, steps: int, num_envs: int) -> np.ndarray:
    """Draws actions `[T, B] int32` or `[T, B, k] float32`, the latter a little over the bounds.

    With several agents, `[T, B, A]` or `[T, B, A, k]`.
    """
    rng = np.random.default_rng(0)
    shape = (steps, num_envs, *spec.agent_shape)
    if isinstance(spec.action_space, Discrete):
        return rng.integers(0, spec.action_space.n, shape).astype(np.int32)
    high = np.array(spec.action_space.high, np.float32)
    high = np.where(np.isfinite(high), 1.1 * high, 1.0).astype(np.float32)
    return rng.uniform(-1, 1, (*shape, len(high))).astype(np.float32) * high


def _bounded(spec: EnvironmentSpec, action: np.ndarray) -> np.ndarray:
    """Limits a network's actions to the bounds of their space."""
    space = spec.action_space
    if isinstance(space, Discrete):
        return action
    return within(action, *space.limits, space.whole).astype(np.float32)


def _num_steps(spec: EnvironmentSpec) -> int:
    return min(spec.max_episode_steps or MAX_STEPS, MAX_STEPS) + 10


def _check_vector(name: str, spec: EnvironmentSpec, tell: Callable) -> list[str]:
    actions = random_actions(spec, _num_steps(spec), NUM_ENVS)
    done = itertools.count(1)
    most = 11 * len(actions) // 2

    def make(env_indices: range = range(NUM_ENVS)) -> Any:
        env = registry.make_vector(name, env_indices, 1)
        return _Told(env, lambda: tell(next(done), most))

    env = make()
    same = dataclasses.replace(env.spec, warning=spec.warning) == spec
    found = [] if same else [f"its spec is {env.spec}, expected {spec}"]

    first_obs = env.reset()
    found += _wrong_array("reset", "obs", first_obs, (NUM_ENVS, *spec.obs_shape), spec.obs_dtype)
    copies, steps = [], []
    for action in actions:
        steps.append(env.step(action))
        copies.append(tuple(np.array(array) for array in steps[-1]))
        found += _wrong_step(spec, steps[-1])
        if found:
            return found
    if not _same(steps, copies):
        found.append("step changed arrays that an earlier step had returned: return fresh ones")
    found += _wrong_ends(spec, first_obs, copies)
    found += _differs("after a second reset()", first_obs, copies, env.reset(), env, actions)

    again = make()
    found += _differs("with the same seed", first_obs, copies, again.reset(), again, actions)
    share = make(range(2, NUM_ENVS))
    rows = [tuple(array[2:] for array in step) for step in copies]
    text = "as a share, environments [2:4] of [0:4],"
    found += _differs(text, first_obs[2:], rows, share.reset(), share, actions[:, 2:])
    found += _wrong_restore(make, again, copies, actions)
    for one in (env, again, share):
        one.close()
    return found


def _wrong_restore(make: Callable, env: Any, expected: Steps, actions: np.ndarray) -> list[str]:
    half = len(actions) // 2
    env.reset()
    for action in actions[:half]:
        env.step(action)
    state = env.get_state()
    if state is None:
        return []
    short = [key for key, array in state.items() if len(array) != NUM_ENVS]
    if short:
        return [f"get_state() has no leading axis of {NUM_ENVS} environments in {short}"]
    for action in actions[half:]:
        env.step(action)  # must not alter the saved state
    other = make()
    obs = other.set_state(state)
    text = "after set_state() in a new environment"
    found = _differs(text, expected[half - 1][0], expected[half:], obs, other, actions[half:])
    other.close()
    return found


def _check_graph(name: str, spec: EnvironmentSpec, tell: Callable) -> list[str]:
    import mindspore as ms  # noqa: PLC0415 (1.2 s and 450 MB)

    from mindspore_rl.platform import mindspore_device  # noqa: PLC0415

    before = ms.get_context("mode")
    mindspore_device.use()
    try:
        return _check_graph_in_pynative(name, spec, tell)
    finally:
        ms.set_context(mode=before)


def _check_graph_in_pynative(name: str, spec: EnvironmentSpec, tell: Callable) -> list[str]:
    from mindspore_rl.environments.in_graph import native_step  # noqa: PLC0415  (as above)

    env = registry.make_graph(name)
    reset, step = _in_numpy(env)
    actions = random_actions(spec, _num_steps(spec), NUM_ENVS)
    noise = np.random.default_rng(1).random(
        (len(actions) + 1, NUM_ENVS, env.noise_size), np.float32
    )
    state, first_obs = reset(noise[-1])
    found = _wrong_array("reset", "obs", first_obs, (NUM_ENVS, *spec.obs_shape), np.float32)
    found += _wrong_array("reset", "state", state, (NUM_ENVS, env.state_size), np.float32)
    if not _same([reset(noise[-1, 2:])], [(state[2:], first_obs[2:])]):
        found.append("reset: environments [2:4] depend on [0:2]")
    steps: list[Step] = []
    obs = first_obs
    for t in range(len(actions)):
        tell(t + 1, len(actions))
        before = state
        action = actions[t] = valid_actions(spec, obs, actions[t])
        state, *rest = step(before, action, noise[t])
        steps.append(tuple(rest))
        found += _wrong_array("step", "state", state, (NUM_ENVS, env.state_size), np.float32)
        found += _wrong_step(spec, steps[-1])
        if found:
            return found
        obs = rest[0]
        if t % 50 == 0 or (rest[3] | rest[4]).any():
            if not _same([(state, *rest)], [step(before, action, noise[t])]):
                found.append(f"step {t} gave another result for the same inputs")
            rows = tuple(array[2:] for array in (state, *rest))
            if not _same([rows], [step(before[2:], action[2:], noise[t, 2:])]):
                found.append(f"step {t}: environments [2:4] depend on [0:2]")
            if not _same([(state, *rest)], [step(before, _bounded(spec, action), noise[t])]):
                found.append(
                    f"step {t}: an action beyond the bounds does something else than one at them: "
                    "clip it in the environment, as `load(run).policy` and exported files do"
                )
    found += _wrong_ends(spec, first_obs, steps)
    if isinstance(env, native_step.NativeEnvironment):
        found += _differs_from_operators(env, reset(noise[-1])[0], actions, noise)
    if python_name := registry.python_name(name):
        found += _differs_from_python(python_name, env, reset(noise[-1])[0], noise)
    return found


def _differs_from_operators(
    env: Any, state: np.ndarray, actions: np.ndarray, noise: np.ndarray
) -> list[str]:
    """Compares native steps with those of MindSpore's operators, each from the same state."""
    steps = _in_numpy(env)[1], _in_numpy(env.operators)[1]
    for t, action in enumerate(actions):
        got, expected = (step(state, action, noise[t]) for step in steps)
        for field, gap in _gaps(("state", *FIELDS), got, expected):
            return [f"step {t}: {field} of the native step is {gap:.2g} away from step's"]
        state = got[0]
    return []


def _differs_from_python(name: str, env: Any, state: np.ndarray, noise: np.ndarray) -> list[str]:
    """Compares steps with those of `name`, each from the same state: rounding grows over steps."""
    _, step = _in_numpy(env)
    python_env = registry.make_vector(name, range(NUM_ENVS), 1)
    saved = python_env.get_state()
    assert saved is not None
    spec = python_env.spec
    steps = min(COMPARED_STEPS, 2 * spec.max_episode_steps)
    for t, action in enumerate(random_actions(spec, steps, NUM_ENVS)):
        saved |= {"physics": env.python_state(state), "elapsed": state[:, -1].astype(np.int64)}
        python_env.set_state(saved)
        expected = python_env.step(action)[1:]
        state, _, *got = step(state, action, noise[t % len(noise)])
        for field, gap in _gaps(FIELDS[1:], got, expected):
            return [f"step {t}: {field} is {gap:.2g} away from that of {name}"]
    return []


def _gaps(
    fields: Sequence[str], got: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> Iterator[tuple[str, float]]:
    """Yields the fields of a step that differ by more than rounding, with their difference."""
    for field, one, other in zip(fields, got, expected, strict=True):
        gap = np.abs(one.astype(np.float64) - other).max()
        if gap > TOLERANCE:
            yield field, gap


def _in_numpy(env: Any) -> tuple[Callable, Callable]:
    from mindspore import Tensor  # noqa: PLC0415 (as above)

    def arrays(tensors: Any) -> Step:
        return tuple(np.array(tensor.asnumpy()) for tensor in tensors)

    def reset(noise: np.ndarray) -> Step:
        return arrays(env.reset(Tensor(noise)))

    def step(*inputs: np.ndarray) -> Step:
        return arrays(env.step(*(Tensor(np.ascontiguousarray(array)) for array in inputs)))

    return reset, step


def _wrong_step(spec: EnvironmentSpec, step: Step) -> list[str]:
    if len(step) != len(FIELDS):
        return [f"step returned {len(step)} values, expected {', '.join(FIELDS)}"]
    size = len(step[2])
    shapes = {"next_obs": spec.obs_shape, "final_obs": spec.obs_shape, "reward": spec.agent_shape}
    found = []
    for field, array in zip(FIELDS, step, strict=True):
        shape = (size, *shapes.get(field, ()))
        dtype: Any = np.bool_ if field in FIELDS[3:] else np.float32
        if field in FIELDS[:2]:
            dtype = spec.obs_dtype
        found += _wrong_array("step", field, array, shape, dtype)
    if found:
        return found
    next_obs, final_obs, _, terminated, truncated = step
    if wrong := wrong_mask(spec, next_obs) or wrong_mask(spec, final_obs[~terminated]):
        return [f"step: {wrong[1]}"]
    going_on = ~(terminated | truncated)
    if not np.array_equal(next_obs[going_on], final_obs[going_on]):
        found.append("next_obs differs from final_obs where the episode goes on")
    return found


def _wrong_array(method: str, field: str, array: Any, shape: tuple, dtype: Any) -> list[str]:
    got = (getattr(array, "dtype", type(array).__name__), np.shape(array))
    if got != (np.dtype(dtype), shape):
        return [f"{method}: {field} is {got[0]} {got[1]}, expected {np.dtype(dtype)} {shape}"]
    return [] if all_trainable(array) else [f"{method}: {untrainable(field, array)}"]


def _wrong_ends(spec: EnvironmentSpec, first_obs: np.ndarray, steps: Steps) -> list[str]:
    """Checks the lengths of episodes, the cause of `truncated`, and the resets after ends."""
    next_obs, final_obs, _, terminated, truncated = (
        np.stack(arrays) for arrays in zip(*steps, strict=True)
    )
    ended = terminated | truncated
    limit = spec.max_episode_steps
    elapsed = np.zeros(ended.shape[1], np.int64)
    for t in range(len(ended)):
        elapsed += 1
        if limit and ((elapsed >= limit) & ~ended[t]).any():
            return [f"an episode goes on after the limit of {limit} steps"]
        merged = ((elapsed >= limit) & terminated[t] & ~truncated[t]).any()
        if limit >= SHORT and merged and not terminated[:t].any():
            return [f"the limit of {limit} steps sets terminated, expected truncated"]
        elapsed[ended[t]] = 0
    varies = np.ptp(np.concatenate([first_obs[None], final_obs]), axis=0).any()
    if ended.any() and varies and np.array_equal(next_obs[ended], final_obs[ended]):
        return ["next_obs equals final_obs at every end of an episode: it is not reset"]
    return []


def _differs(
    when: str,
    first_obs: np.ndarray,
    expected: Steps,
    obs: np.ndarray,
    env: Any,
    actions: np.ndarray,
) -> list[str]:
    if not np.array_equal(obs, first_obs):
        return [f"{when} the first obs{_first_gap(obs, first_obs)}"]
    for t, (action, wanted) in enumerate(zip(actions, expected, strict=True)):
        for field, one, other in zip(FIELDS, env.step(action), wanted, strict=True):
            if not np.array_equal(one, other):
                return [f"{when} at step {t} {field}{_first_gap(one, other)}"]
    return []


def _first_gap(got: np.ndarray, expected: np.ndarray) -> str:
    """Describes the first number that differs between two arrays."""
    if np.shape(got) != np.shape(expected):
        return f" has the shape {np.shape(got)}, expected {np.shape(expected)}"
    place = tuple(np.argwhere(~(got == expected))[0].tolist())
    return f"{list(place)} is {got[place]}, expected {expected[place]}"


def _same(got: Steps, expected: Steps) -> bool:
    return all(
        np.array_equal(one, other)
        for step, wanted in zip(got, expected, strict=True)
        for one, other in zip(step, wanted, strict=True)
    )
