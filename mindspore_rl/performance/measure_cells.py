"""Measures the parts of cells that Python cannot see."""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.cost_tables import FragmentCosts
from mindspore_rl.plan.plan import FragmentPlan, Plan

MORE, PHASE_S, MIN = 16, 0.2, 5
"""Steps by which the two cells differ; seconds of calling each, and minimum number of calls."""


def inside_s(
    plan: Plan, fragment: FragmentPlan, costs: FragmentCosts, cluster: Cluster
) -> dict[str, float]:
    """Returns the seconds of an iteration that a fragment spends inside cells, by activity.

    Collectives of native cells are left out, since a profile shows them separately.
    """
    found = {"environment steps": costs.env_step_s * plan.steps_per_env}
    if plan.cells != "native" and len(fragment.shares) > 1:
        own = [r for r in plan.reductions if r.fragment == fragment.name]
        times = (r.times * cluster.reduce_s(plan, fragment.ranks, r.message_bytes) for r in own)
        found["collectives"] = sum(times)
    return {what: seconds for what, seconds in found.items() if seconds}


def env_step_s(plan: Plan, num_envs: int, threads: int) -> float:
    """Measures the seconds of an environment step inside a cell, as this job's cells run.

    It compares a cell of one step with a cell of several, which cancels their common overhead.
    """
    from mindspore import Tensor, nn  # noqa: PLC0415  (heavy, and not every rank's)

    from mindspore_rl.environments.registry import make_graph  # noqa: PLC0415

    class Steps(nn.Cell):
        """Consecutive environment steps, all of whose results are used."""

        def __init__(self, environment: Any, count: int) -> None:
            super().__init__(auto_prefix=False)
            self.environment, self.count = environment, count

        def construct(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple:
            rewards, seen = 0.0, 0.0
            for _ in range(self.count):
                state, obs, final_obs, reward, _, _ = self.environment.step(state, action, noise)
                rewards, seen = rewards + reward, seen + obs + final_obs
            return state, rewards, seen

    environment = make_graph(plan.environment)
    chance = np.random.default_rng(0)
    noise = chance.random((num_envs, environment.noise_size), dtype=np.float32)
    state, _ = environment.reset(Tensor(noise))
    inputs = (state.asnumpy(), _action(environment.spec, num_envs), noise)
    calls = [_runner(Steps(environment, count), plan, threads) for count in (1, 1 + MORE)]
    one, several = (_median_s(call, inputs) for call in calls)
    return max(several - one, 0.0) / MORE


def _action(spec: Any, num_envs: int) -> np.ndarray:
    space, lead = spec.action_space, (num_envs, *spec.agent_shape)
    if isinstance(space, Discrete):
        return np.zeros(lead, np.int32)
    return np.zeros((*lead, math.prod(space.shape)), np.float32)


def _runner(cell: Any, plan: Plan, threads: int) -> Callable[..., Any]:
    """Lowers a cell as this job's cells are lowered."""
    from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell  # noqa: PLC0415
    from mindspore_rl.runtime.rank.native_or_mindspore import LoweredCell  # noqa: PLC0415

    if plan.cells != "native":
        return CompiledCell(cell)
    return LoweredCell(
        cell, [], [], lambda number: number, lambda *_: None, lambda *_: None, threads
    )


def _median_s(call: Callable[..., Any], inputs: tuple[Any, ...]) -> float:
    call(*inputs)
    times: list[float] = []
    while len(times) < MIN or sum(times) < PHASE_S:
        begun = time.perf_counter()
        call(*inputs)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
