"""CartPole and Pendulum in MindSpore operators.

A step from the same state equals gym's within 1e-5 (float32 against float64). Both tasks are
unstable, so trajectories diverge: after 200 steps of Pendulum by about 1e-2.

An operator costs 1 to 3 us at any size, so the equations use few of them: one Unstack takes the
columns apart, one Stack puts them together, `Addcmul` is a product and a sum in one operator, and
the increments of each environment's counters are constants.
"""

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_rl.environments import environment


def _row(*values: float) -> Tensor:
    return Tensor(np.array([values], np.float32))


def _scalar(value: float) -> Tensor:
    return Tensor(np.array([value], np.float32))


class GraphCartPole(nn.Cell):
    """CartPole-v1 (Barto, Sutton and Anderson, 1983, as gym has it).

    State: x, x_dot, theta, theta_dot, steps taken; the first four are the observation. 24
    operators a step. Accelerations are kept in units of gravity, which saves products.
    """

    spec = environment.GRAPH_SPECS["graph:CartPole-v1"]
    noise_size = 5
    state_size = 5
    native = "cartpole.cpp"

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        gravity, force, tau = 9.8, 10.0, 0.02
        mass_pole, mass, length = 0.1, 1.1, 0.5
        ratio = mass_pole * length / mass
        self.push = Tensor(np.array([-1, 1]) * force / mass / gravity, ms.float32)
        self.centrifugal = _scalar(ratio / gravity)
        self.minus_inertia = _scalar(-length * 4.0 / 3.0)
        self.ratio = _scalar(ratio)
        self.minus_ratio = _scalar(-ratio)
        self.rate = _row(tau, tau * gravity, tau, tau * gravity, 1.0)
        angle = 12 * 2 * math.pi / 360
        self.limit = _row(2.4, np.inf, angle, np.inf, self.spec.max_episode_steps - 0.5)
        self.width = _row(0.1, 0.1, 0.1, 0.1, 0.0)
        self.low = _row(-0.05, -0.05, -0.05, -0.05, 0.0)
        self.columns = ops.Unstack(1)
        self.addcmul = ops.Addcmul()
        self.any_column = ops.ReduceAny(True)

    def reset(self, noise: Any) -> tuple[Any, Any]:
        """Starts every environment; see `GraphEnvironment.reset`. Row b uses noise row b alone."""
        state = noise * self.width + self.low
        return state, state[:, 0:4]

    def step(self, state: Any, action: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Takes one step of every environment; see `GraphEnvironment.step`."""
        _, x_dot, theta, theta_dot, elapsed = self.columns(state)
        sine = ops.sin(theta)
        cosine = ops.cos(theta)
        push = ops.gather(self.push, action, 0)
        temp = self.addcmul(push, theta_dot * theta_dot, sine, self.centrifugal)
        # Numerator and denominator are both negated, as Addcmul computes them.
        inertia = self.addcmul(self.minus_inertia, cosine, cosine, self.ratio)
        theta_acc = (cosine * temp - sine) / inertia
        x_acc = self.addcmul(temp, cosine, theta_acc, self.minus_ratio)
        one = ops.ones_like(elapsed)
        moved = state + ops.stack((x_dot, x_acc, theta_dot, theta_acc, one), 1) * self.rate

        over = ops.abs(moved) > self.limit
        x_over, _, theta_over, _, truncated = self.columns(over)
        terminated = ops.logical_or(x_over, theta_over)
        fresh = noise * self.width + self.low
        next_state = ops.where(self.any_column(over, 1), fresh, moved)
        return next_state, next_state[:, 0:4], moved[:, 0:4], one, terminated, truncated

    def python_state(self, state: np.ndarray) -> np.ndarray:
        """Returns gym's state, `[B, 4] float64`, of `state`."""
        return state[:, :4].astype(np.float64)


class GraphPendulum(nn.Cell):
    """Pendulum-v1 of gym.

    State: cos(theta), sin(theta), theta_dot, steps taken; the first three are the observation.
    atan2 computes the angle from them. This saves gym's normalisation, and is precise however
    often the pendulum has turned. 28 operators a step.
    """

    spec = environment.GRAPH_SPECS["graph:Pendulum-v1"]
    noise_size = 2
    state_size = 4
    native = "pendulum.cpp"

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        gravity, mass, length, dt = 10.0, 1.0, 1.0, 0.05
        self.one = _scalar(1.0)
        self.zero = _scalar(0.0)
        self.dt = _scalar(dt)
        self.weight = _scalar(3 * gravity / (2 * length) * dt)
        self.lever = _scalar(3.0 / (mass * length**2) * dt)
        self.minus_one = _scalar(-1.0)
        self.speed_cost = _scalar(-0.1)
        self.torque_cost = _scalar(-0.001)
        self.width = _row(2 * math.pi, 2.0)
        self.low = _row(-math.pi, -1.0)
        self.columns = ops.Unstack(1)
        self.addcmul = ops.Addcmul()

    def reset(self, noise: Any) -> tuple[Any, Any]:
        """Starts every environment; see `GraphEnvironment.reset`. Row b uses noise row b alone."""
        state = self._fresh(noise)
        return state, state[:, 0:3]

    def step(self, state: Any, action: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Takes one step of every environment; see `GraphEnvironment.step`."""
        cosine, sine, speed, elapsed = self.columns(state)
        angle = ops.atan2(sine, cosine)
        torque = ops.clamp(ops.reshape(action, (-1,)), -2.0, 2.0)
        reward = self.addcmul(self.zero, angle, angle, self.minus_one)
        reward = self.addcmul(reward, speed, speed, self.speed_cost)
        reward = self.addcmul(reward, torque, torque, self.torque_cost)

        speed = self.addcmul(speed, sine, self.one, self.weight)
        speed = ops.clamp(self.addcmul(speed, torque, self.one, self.lever), -8.0, 8.0)
        angle = self.addcmul(angle, speed, self.one, self.dt)
        elapsed = elapsed + 1.0
        moved = ops.stack((ops.cos(angle), ops.sin(angle), speed, elapsed), 1)

        truncated = elapsed >= self.spec.max_episode_steps
        terminated = ops.zeros(truncated.shape, ms.bool_)
        next_state = ops.where(ops.expand_dims(truncated, 1), self._fresh(noise), moved)
        return next_state, next_state[:, 0:3], moved[:, 0:3], reward, terminated, truncated

    def python_state(self, state: np.ndarray) -> np.ndarray:
        """Returns gym's state, `[B, 2] float64`, of `state`."""
        state = state.astype(np.float64)
        return np.stack([np.arctan2(state[:, 1], state[:, 0]), state[:, 2]], axis=1)

    def _fresh(self, noise: Any) -> Any:
        angle, speed = self.columns(noise * self.width + self.low)
        return ops.stack((ops.cos(angle), ops.sin(angle), speed, ops.zeros_like(speed)), 1)
