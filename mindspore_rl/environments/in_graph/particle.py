"""Particle worlds in MindSpore operators: simple_spread and simple_tag of mpe2.

Round agents (Lowe et al., 2017) move in a plane by forces, and contacts push them apart. A step
from the same state equals mpe2's within 1e-5 (float32 against float64), unless a distance is within
rounding of a threshold: then a collision may count in one and not in the other.

An observation is linear in the state, and so are the differences of positions in forces and
rewards. Each is one product with a matrix of 0, 1 and -1, which is exact.
"""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_rl.environments import environment

DT = 0.1  # time of a step, in mpe2's units
DAMPING = 0.25  # fraction of the velocity lost in a step
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3  # softness of a contact, units of length
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)


def _tensor(values: Any) -> Tensor:
    return Tensor(np.asarray(values, np.float32))


class ParticleWorld(nn.Cell):
    """A agents and L landmarks, A + L entities in this order; a subclass adds the rewards.

    State: agents' positions, agents' velocities, landmarks' positions (x, y of each in turn) and
    the steps taken.

    Args:
        radius: of each entity, `[A + L]`, units of length.
        solid: True for entities that collide, `[A + L]`.
        force: the force of a moving agent, `[A]`.
        max_speed: the agents' largest speeds, `[A]`; None for no limit.
        landmark_range: landmarks start within plus and minus this; agents start within 1.
        sees_velocity: True if agent i observes agent j's velocity, `[A, A]`.
    """

    spec: environment.EnvironmentSpec
    noise_size: int
    state_size: int

    def __init__(
        self,
        radius: np.ndarray,
        solid: np.ndarray,
        force: np.ndarray,
        max_speed: np.ndarray | None,
        landmark_range: float,
        sees_velocity: np.ndarray,
    ) -> None:
        super().__init__(auto_prefix=False)
        agents, entities = len(force), len(radius)
        self.agents, self.entities = agents, entities
        self.moving = 2 * agents
        self.moves = _tensor(MOVES)
        self.force = _tensor(force[:, None])
        self.max_speed = None if max_speed is None else _tensor(max_speed[:, None])
        # By agent and entity, [A, A + L, 1]; an agent does not touch itself.
        others = 1 - np.eye(agents, entities)
        self.itself = _tensor(1 - others)[:, :, None]
        self.reach = _tensor((radius[:agents, None] + radius)[:, :, None])
        self.contact = _tensor((CONTACT_FORCE * others * solid * solid[:agents, None])[:, :, None])

        self.differences, self.features, self.team = self._matrices(sees_velocity)
        span = np.where(np.arange(2 * entities) < 2 * agents, 1.0, landmark_range)
        start = np.zeros((2 * entities, self.state_size))
        columns = [c for e in range(entities) for c in self._position(e)]
        start[np.arange(2 * entities), columns] = 2 * span
        self.start = _tensor(start)
        self.corner = _tensor(-start.sum(axis=0, keepdims=True) / 2)

    def reset(self, noise: Any) -> tuple[Any, Any]:
        """Starts every environment; see `GraphEnvironment.reset`. Row b uses noise row b alone."""
        state = self._fresh(noise)
        return state, self._observed(state)

    def step(self, state: Any, action: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Takes one step of every environment; see `GraphEnvironment.step`."""
        moving = self.moving
        velocity = state[:, moving : 2 * moving]
        delta, distance = self._between(state)
        # A contact starts as softplus, computed here from exponentials that cannot overflow.
        depth = (self.reach - distance) / CONTACT_MARGIN
        soft = ops.relu(depth) + ops.log(ops.exp(-ops.abs(depth)) + 1.0)
        pushed = ops.sum(delta / distance * soft * self.contact, 2) * CONTACT_MARGIN
        driven = ops.gather(self.moves, action, 0) * self.force
        faster = velocity.reshape((-1, self.agents, 2)) * (1 - DAMPING) + (driven + pushed) * DT
        if self.max_speed is not None:
            speed = ops.sqrt(ops.sum(faster * faster, 2, True))
            faster = faster * (self.max_speed / ops.maximum(speed, self.max_speed))
        elapsed = state[:, -1:] + 1.0
        position = state[:, 0:moving] + velocity * DT
        faster = faster.reshape((-1, moving))
        moved = ops.concat((position, faster, state[:, 2 * moving : -1], elapsed), 1)

        reward = self.reward(moved, self._between(moved)[1][:, :, :, 0])
        truncated = elapsed >= self.spec.max_episode_steps
        next_state = ops.where(truncated, self._fresh(noise), moved)
        truncated = truncated.reshape((-1,))
        terminated = ops.logical_and(truncated, ops.logical_not(truncated))
        observed = self._observed(next_state)
        return next_state, observed, self._observed(moved), reward, terminated, truncated

    def reward(self, state: Any, distance: Any) -> Any:
        """Returns the reward of each agent, `[B, A]`.

        Args:
            state: `[B, state_size]`, after the step.
            distance: from agents to entities `[B, A, A + L]`, 1 from an agent to itself.
        """
        raise NotImplementedError

    def python_state(self, state: np.ndarray) -> np.ndarray:
        """Returns the physics of the PettingZoo adapter, `[B, 4 A + 2 L] float64`."""
        return state[:, :-1].astype(np.float64)

    def touching(self, distance: Any) -> Any:
        """Returns which agents touch which others, `[B, A, A] float32`."""
        near = distance[:, :, 0 : self.agents] < self.reach[:, 0 : self.agents, 0]
        return near.astype(ms.float32)

    def _fresh(self, noise: Any) -> Any:
        return ops.matmul(noise, self.start) + self.corner

    def _observed(self, state: Any) -> Any:
        return ops.matmul(state, self.features).reshape((-1, *self.spec.obs_shape)) + self.team

    def _between(self, state: Any) -> tuple[Any, Any]:
        """From each entity to each agent: differences `[B, A, A + L, 2]`, distances `[..., 1]`."""
        delta = ops.matmul(state, self.differences)
        delta = delta.reshape((-1, self.agents, self.entities, 2))
        return delta, ops.sqrt(ops.sum(delta * delta, 3, True) + self.itself)

    def _position(self, entity: int) -> tuple[int, int]:
        """Returns the columns of the state with the position of an entity."""
        first = 2 * entity if entity < self.agents else 2 * (entity + self.agents)
        return first, first + 1

    def _matrices(self, sees_velocity: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Makes the matrices from state to differences and observations, and teams' one-hots."""
        one = np.eye(self.state_size)
        place = [one[:, self._position(e)] for e in range(self.entities)]
        speed = [one[:, 2 * a + self.moving : 2 * a + self.moving + 2] for a in range(self.agents)]
        differences = [mine - other for mine in place[: self.agents] for other in place]
        teams = [i for i, team in enumerate(self.spec.teams) for _ in range(team.num_agents)]
        size = self.spec.obs_shape[1]
        features = np.zeros((self.state_size, self.agents, size))
        marks = np.zeros((self.agents, size))
        for a in range(self.agents):
            others = [e for e in range(self.agents) if e != a]
            seen = [speed[a], place[a]]
            seen += [place[e] - place[a] for e in (*range(self.agents, self.entities), *others)]
            seen += [speed[e] for e in others if sees_velocity[a, e]]
            columns = np.concatenate(seen, axis=1)
            features[:, a, : columns.shape[1]] = columns
            if len(self.spec.teams) > 1:
                marks[a, size - len(self.spec.teams) + teams[a]] = 1
        return (
            _tensor(np.concatenate(differences, axis=1)),
            _tensor(features.reshape(self.state_size, -1)),
            _tensor(marks),
        )


class GraphSimpleSpread(ParticleWorld):
    """simple_spread_v3: N agents cover as many landmarks and do not collide.

    Half of the reward is shared: minus the sum over landmarks of the distance of the nearest agent.
    Half is an agent's own: -1 for each other agent that it touches (local_ratio 0.5).
    """

    def __init__(self, N: int = 3) -> None:  # noqa: N803  (as mpe2 has it)
        asked = f",N={N}" if N != 3 else ""
        self.spec = environment.graph_spec(f"graph:simple_spread_v3{asked}")
        self.noise_size, self.state_size = 4 * N, 6 * N + 1
        super().__init__(
            radius=np.array([0.15] * N + [0.05] * N),
            solid=np.array([1] * N + [0] * N),
            force=np.full(N, 5.0),
            max_speed=None,
            landmark_range=1.0,
            sees_velocity=np.zeros((N, N)),
        )

    def reward(self, state: Any, distance: Any) -> Any:
        """See `ParticleWorld.reward`."""
        nearest = ops.amin(distance[:, :, self.agents :], 1)
        own = ops.sum(self.touching(distance), 2)
        return (own + ops.sum(nearest, 1, True)) * -0.5


class GraphSimpleTag(ParticleWorld):
    """simple_tag_v3: three slow adversaries chase one fast agent among two obstacles.

    Each adversary gains 10 for each touch of an agent by any of them. The agent loses 10 for each
    touch, and more the farther it leaves the field.
    """

    spec = environment.GRAPH_SPECS["graph:simple_tag_v3"]
    noise_size = 12
    state_size = 21

    def __init__(self) -> None:
        super().__init__(
            radius=np.array([0.075] * 3 + [0.05] + [0.2] * 2),
            solid=np.ones(6),
            force=np.array([3.0, 3.0, 3.0, 4.0]),
            max_speed=np.array([1.0, 1.0, 1.0, 1.3]),
            landmark_range=0.9,
            sees_velocity=np.tile([0, 0, 0, 1], (4, 1)),
        )
        self.hunter = _tensor([1, 1, 1, 0])
        self.hunted = _tensor([0, 0, 0, 1])

    def reward(self, state: Any, distance: Any) -> Any:
        """See `ParticleWorld.reward`."""
        # [B, A], the number of adversaries that touch each agent, then all touches of agents.
        touched = ops.sum(self.touching(distance) * self.hunter, 2) * self.hunted
        caught = ops.sum(touched, 1, True) * self.hunter * 10.0
        side = ops.abs(state[:, 0 : self.moving].reshape((-1, self.agents, 2)))
        # expm1: MindSpore's exp has a relative error of 2e-6 on the CPU, which is too much here.
        outside = ops.minimum(ops.expm1(side * 2.0 - 2.0) + 1.0, ops.full_like(side, 10.0))
        leaving = ops.where(side < 1.0, ops.relu(side * 10.0 - 9.0), outside)
        return caught - (touched * 10.0 + ops.sum(leaving, 2) * self.hunted)
