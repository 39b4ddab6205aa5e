"""Reads and restores states of gym's and gymnasium's environments: classic control and MuJoCo."""

from typing import Any

import numpy as np

_MASK64 = (1 << 64) - 1
# Values that the MuJoCo environments read before the next step computes them again.
_MUJOCO_DERIVED = ("xpos", "xipos", "site_xpos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")


def state_kind(env: Any) -> str | None:
    """Returns "classic" or "mujoco", or None if the state is not known to be complete."""
    library, _, module = type(env).__module__.partition(".")
    if library not in ("gym", "gymnasium"):
        return None
    if module.startswith("envs.classic_control."):
        return "classic"
    # Old versions use mujoco_py, whose data are not accessible in this way.
    if module.startswith("envs.mujoco.") and hasattr(env.data, "qacc_warmstart"):
        return "mujoco"
    return None


def physics_type(env: Any) -> int:
    """Returns 0 for a tuple, else the bytes per number of an array: arithmetic depends on them."""
    state = getattr(env, "state", None)
    return state.itemsize if isinstance(state, np.ndarray) else 0


def get_physics(env: Any) -> np.ndarray:
    """Returns positions, velocities and other values kept between steps, `[k] float64`."""
    if state_kind(env) == "classic":
        return np.array(env.state, np.float64)
    mujoco, kind = _mujoco_state()
    state = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, state, kind)
    derived = [getattr(env.data, field).ravel() for field in _MUJOCO_DERIVED]
    return np.concatenate([state, *derived])


def set_physics(env: Any, physics: np.ndarray, kind: int) -> None:
    """Restores the results of `get_physics` and `physics_type`."""
    if state_kind(env) == "classic":
        dtype = np.float32 if kind == 4 else np.float64
        env.state = tuple(physics) if kind == 0 else physics.astype(dtype)
        if hasattr(env, "steps_beyond_terminated"):
            env.steps_beyond_terminated = None
        return
    mujoco, signature = _mujoco_state()
    at = mujoco.mj_stateSize(env.model, signature)
    mujoco.mj_setState(env.model, env.data, np.ascontiguousarray(physics[:at]), signature)
    for field in _MUJOCO_DERIVED:
        array = getattr(env.data, field)
        array[:] = physics[at : at + array.size].reshape(array.shape)
        at += array.size


def _mujoco_state() -> tuple[Any, Any]:
    import mujoco  # noqa: PLC0415 (optional)

    # The integrator's full state: the solver starts from its last solution, so positions and
    # velocities alone would not give the same bits.
    return mujoco, mujoco.mjtState.mjSTATE_INTEGRATION


def get_random(env: Any) -> np.ndarray:
    """Returns the state of a PCG64 as 6 uint64: state, increment (high, low), the spare half."""
    full = env.np_random.bit_generator.state
    state, inc = full["state"]["state"], full["state"]["inc"]
    words = (state >> 64, state & _MASK64, inc >> 64, inc & _MASK64)
    return np.array([*words, full["has_uint32"], full["uinteger"]], np.uint64)


def set_random(env: Any, words: np.ndarray) -> None:
    """Restores the result of `get_random`."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    env.np_random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
