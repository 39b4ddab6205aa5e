"""Runs the steps of in-graph environments as one native operator.

An attribute `native` of the class is the path of a C++ source beside its own file;
`native_step.h` says what the source must define. Its numbers equal those of the class's `step`
up to rounding (`msrl envs check` compares them). A subclass may change that step, so it does not
inherit the attribute.
"""

import inspect
import math
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import EnvironmentFailure
from mindspore_rl.platform import gpu, toolchain

STEP = Path(__file__).parent / "native_step.h"


class NativeEnvironment(nn.Cell):
    """An in-graph environment whose step is one operator.

    Args:
        environment: an environment in MindSpore's operators, with an attribute `native`.

    Raises:
        EnvironmentFailure: the source does not exist.
        MsrlError: it does not compile.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(auto_prefix=False)
        self.operators = environment
        self.spec = environment.spec
        self.noise_size, self.state_size = environment.noise_size, environment.state_size
        self.python_state = getattr(environment, "python_state", None)
        source = Path(inspect.getfile(type(environment))).parent / environment.native
        if not source.is_file():
            raise EnvironmentFailure(
                f"{type(environment).__name__}.native is {environment.native!r}, but there is no "
                f"file {source}"
            )
        macros = macros_of(source.resolve(), environment)
        self.action_type = ms.int32 if macros["DISCRETE"] else ms.float32
        self.native = ops.Custom(
            f"{_library(macros, source)}:step",
            self._shapes,
            lambda state, action, noise: (state, state, state, state, ms.bool_, ms.bool_),
            func_type="aot",
        )

    def _shapes(self, state: list, action: list, noise: list) -> tuple:
        batch = state[0]
        if math.prod(action) != batch * _action_size(self.spec):
            raise EnvironmentFailure(
                f"{self.spec.name}: actions are {action}, expected {batch} environments' of "
                f"{self.spec.action_space}"
            )
        obs, agents = self.spec.obs_shape, self.spec.agent_shape
        return state, [batch, *obs], [batch, *obs], [batch, *agents], [batch], [batch]

    def reset(self, noise: Any) -> tuple[Any, Any]:
        """Starts every environment; see `GraphEnvironment.reset`."""
        return self.operators.reset(noise)

    def step(self, state: Any, action: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Takes one step of every environment; see `GraphEnvironment.step`."""
        return self.native(state, ops.cast(action, self.action_type), noise)


def accelerated(environment: Any) -> Any:
    """Returns the environment, with native steps if it has a source and a compiler is here."""
    if "native" in vars(type(environment)) and toolchain.usable("CPU", "GPU"):
        return NativeEnvironment(environment)
    return environment


def _library(macros: dict[str, str | int], source: Path) -> Path:
    if toolchain.usable("GPU"):
        oldest = min(gpu.architecture(), gpu.NEWEST)
        macros = {**macros, "KERNEL": f'"{toolchain.kernel(STEP, macros, (source,), oldest)}"'}
    return toolchain.library(STEP, macros, (toolchain.DRIVER, source))


def macros_of(source: Path, environment: Any) -> dict[str, str | int]:
    """Returns the macros that `native_step.h` needs."""
    spec: EnvironmentSpec = environment.spec
    return {
        "SOURCE": f'"{source}"',
        "DISCRETE": int(isinstance(spec.action_space, Discrete)),
        "STATE": environment.state_size,
        "NOISE": environment.noise_size,
        "OBS": math.prod(spec.obs_shape),
        "ACTION": _action_size(spec),
        "REWARD": math.prod(spec.agent_shape),
        "MAX_STEPS": spec.max_episode_steps,
    }


def _action_size(spec: EnvironmentSpec) -> int:
    """Returns how many numbers one environment's action has."""
    space = spec.action_space
    each = 1 if isinstance(space, Discrete) else math.prod(space.shape)
    return math.prod(spec.agent_shape) * each
