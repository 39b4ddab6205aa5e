"""Base classes of an algorithm (`Actor`, `Learner`, `Trainer`) and the calls of `msrl`.

An algorithm file defines one `Trainer`. Its `train(self, msrl)` is an ordinary Python loop, and
so is its learner's `learn(self, msrl, ...)`; everything that touches the world goes through `msrl`.
The same source is run as plain Python by `runtime.reference` and turned into a graph by
`graph.read.build`, so `Msrl` below is the contract of both.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from mindspore import nn

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.errors import ConfigError


class Msrl(Protocol):
    """The calls that a training loop may make. B environments, T steps an iteration, n samples.

    In a multi-agent environment (one whose spec has teams) an axis of A agents follows that of the
    environments: observations `[B, A, ...]`, actions and rewards `[B, A]`, losses `[n, A]`. What
    ends an episode ends it for all: terminated and truncated stay `[B]`.
    """

    def env_reset(self) -> Any:
        """Resets all environments. Returns: obs `[B, ...]` float32."""

    def env_step(self, action: Any) -> tuple:
        """Steps all environments, which reset themselves at the end of an episode.

        Returns: `(next_obs, final_obs, reward, terminated, truncated)`: observations after the
            automatic reset and before it `[B, ...]`, reward `[B]` float32, two bool `[B]`.
        """

    def agent_act(self, *args: Any) -> Any:
        """Calls `Actor.act(*args, noise)`, with noise `[B, Actor.noise_size]` uniform in [0, 1)."""

    def agent_learn(self, *args: Any) -> Any:
        """Calls `Learner.learn(msrl, *args)`, which static analysis inlines."""

    def replay_insert(self, *values: Any, keep: int = 0) -> None:
        """Appends one step of every environment (values `[B, ...]`) to the trajectory buffer.

        Args:
            values: of the step.
            keep: records of all environments together that stay, the newest `keep // B` of each;
                0: until the next sample.
        """

    def replay_sample(self, count: int = 0, by: str = "stratified", steps: int = 0) -> tuple:
        """The steps inserted since the last sample, in order; of records that are kept some.

        Args:
            count: records of those that are kept; the batch does not depend on the placement. B
                must divide it.
            by: `stratified`: uniform with replacement, as many of each environment. `uniform`: with
                replacement, from the records of all environments together. `distinct`: likewise
                without replacement. `priority`: as many of each environment, in proportion to their
                priorities. A new record has the largest priority of those that its environment has.
            steps: draws windows instead, of so many records of one environment one after the
                other, none of which runs over the newest. The first one's priority counts.

        Returns: one `[n, B, ...]` for each inserted value; n = T after a loop over `steps()`. With
            a count `[count, ...]`, of windows `[count, steps, ...]`;
            by priority, ids and odds `[count]` stand behind them: how much
            likelier each was than in a uniform draw. `odds ** -beta` over its maximum are the
            importance weights of Schaul et al. 2016.
        """

    def replay_update(self, ids: Any, priorities: Any) -> None:
        """Gives the records of a sample priorities `[count]` (|error| ** alpha, Schaul et al.)."""

    def uniform(self, count: int, size: int) -> Any:
        """Random numbers `[count, size]` in [0, 1), others in each turn, for a batch of `count`.

        B must divide the count: as many rows are of each environment, as in a sample.
        """

    def dataset_windows(self, path: str, count: int, length: int) -> tuple:
        """Windows of consecutive steps of a data set, others in each turn.

        Every window comes once in an epoch, in an order that follows from the seed; what is
        behind the end of a record is 0.

        Args:
            path: of a file that `msrl dataset` made, with this environment's observations and
                actions.
            count: of windows; B must divide it.
            length: of each window, in steps.

        Returns: `(obs, action, reward, return_to_go, step, mask)`, each `[count, length, ...]`:
            the undiscounted sum of a step's reward and all that follow, the step's place in its
            episode (int32), and which steps there are (bool).
        """

    def joint(self, value: Any) -> Any:
        """What all agents have, side by side: `[B, A, ...]` becomes `[B, n]` (a joint state).

        The only operation that mixes agents. Pass its result through `boundary("state", ...)`, so
        that a policy that splits agents can compute it where they are together.
        """

    def boundary(self, name: str, value: Any) -> Any:
        """Marks a value (or every value of a tuple) as one that a policy may cut at."""

    def iterations(self) -> Iterable[int]:
        """The training iterations; the body is one synchronous step of the whole system."""

    def steps(self) -> Iterable[int]:
        """`config.num_steps` environment steps."""

    def epochs(self, count: int) -> Iterable[int]:
        """`count` passes over a batch."""

    def minibatches(self, count: int, values: tuple, steps: int = 0) -> Iterable[tuple]:
        """Random minibatches of a batch of values `[T, B, ...]`, each value as `[n, ...]`.

        For each environment its own permutation of the T steps; minibatch k takes the k-th part
        of every environment's, so that minibatches do not depend on the placement (a stratified
        draw, this project's own). n = T B / count, and count must divide T.

        With `steps` each row is a segment, so many steps of an environment one after the other, and
        the permutation is one of segments: values as `[n, steps, ...]`, n = T B / (count * steps),
        for what must be learnt in order. The product of count and steps must divide T.
        """

    def gradient(self, loss: Callable, network: nn.Cell, *args: Any) -> tuple:
        """Differentiates the mean over all samples of a per-sample loss.

        `loss(*args)` returns `[n]`, or a tuple whose first value is the loss `[n]` and the others
        are statistics `[n]`; of segments `[n, steps]`, where each step is a sample.

        Returns: `(grads, means)`: gradients by `network.trainable_params()` and the means of what
            `loss` returned. Both are sums of shares: pass them through `boundary("gradient", ...)`.
        """

    def update(self, method: Callable, *args: Any) -> None:
        """Calls a method that changes parameters or learner state; every argument must be whole."""

    def mean(self, *values: Any, keep: int = 0) -> Any:
        """Means over all samples of all workers: (sum of local sums) / (global count).

        Args:
            values: arrays with environments along an axis, reduced in one collective.
            keep: how many trailing axes are not reduced (features; environments, each by itself).

        Returns: one result for one value, else a tuple.
        """

    def sum(self, *values: Any, keep: int = 0) -> Any:
        """Sums over all samples of all workers, like `mean`."""

    def max(self, *values: Any, keep: int = 0) -> Any:
        """Maxima over all samples of all workers, like `mean`."""

    def min(self, *values: Any, keep: int = 0) -> Any:
        """Minima over all samples of all workers, like `mean`."""

    def env_steps(self) -> Any:
        """Global environment steps taken before this iteration, a float32 scalar (schedules)."""

    def report(self, metrics: dict[str, Any]) -> None:
        """Sends named scalars to the coordinator."""


class Actor(nn.Cell):
    """Chooses actions. Reads parameters and never changes them."""

    noise_size: int = 0
    """Uniform random numbers that `act` uses for each environment (with teams: agent) and step."""

    def act(self, obs: Any, noise: Any) -> Any:
        """Returns what the training loop needs of a decision; row b depends on row b alone."""
        raise NotImplementedError


class Learner(nn.Cell):
    """Turns a batch into gradients and updates of the parameters."""

    def learn(self, msrl: Msrl, *batch: Any) -> dict[str, Any]:
        """One learning phase; analysed statically, like `Trainer.train`."""
        raise NotImplementedError


class Trainer:
    """One algorithm: a configuration class, an actor, a learner and the loop.

    Args:
        config: an instance of `Config`, a frozen dataclass with at least `env`, `seed`,
            `num_envs`, `num_steps` and `total_steps`.
        spec: the environment's shapes.

    Raises:
        ConfigError: one of algorithm and environment has an axis of agents and the other has not.
    """

    Config: ClassVar[type]
    multi_agent: ClassVar[bool] = False
    actor: Actor
    learner: Learner

    def __init__(self, config: Any, spec: EnvironmentSpec) -> None:
        if self.multi_agent != bool(spec.teams):
            kinds = ("a single agent", "teams of agents")
            agents = ", ".join(f"{team.name} x{team.num_agents}" for team in spec.teams)
            raise ConfigError(
                f"{type(self).__name__} is for {kinds[self.multi_agent]}, and {spec.name} has "
                f"{f'the teams {agents}' if agents else kinds[0]}: use another algorithm or --env "
                "(a trainer with an axis of agents says multi_agent = True)"
            )
        self.config = config
        self.spec = spec

    def train(self, msrl: Msrl) -> None:
        """The training loop."""
        raise NotImplementedError
