"""Base classes of an algorithm (`Actor`, `Learner`, `Trainer`) and the calls of `msrl`.

An algorithm file defines one `Trainer`. Its `train(self, msrl)` is an ordinary Python loop, and so
is its learner's `learn(self, msrl, ...)`. Environments, replay, communication and parameter updates
are reached through `msrl` only. The same source is run as plain Python by `runtime.reference` and
turned into a graph by `compiler.frontend.build`; both implement the protocol `Msrl`.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.errors import ConfigError
from mindspore_rl.platform.held_signals import held_signals

with held_signals():  # an interrupted import of MindSpore cannot be repeated, and ends in a crash
    from mindspore import nn

    from mindspore_rl.rl.parameters import keep_attribute


class Msrl(Protocol):
    """The calls that a training loop may make.

    In shapes B is the number of environments, T the steps of an iteration and n a number of
    samples. In a multi-agent environment (one whose spec has teams) an axis of A agents follows
    that of environments: observations `[B, A, ...]`, actions and rewards `[B, A]`, losses `[n, A]`.
    An episode ends for all agents at once: terminated and truncated stay `[B]`.
    """

    def env_reset(self) -> Any:
        """Resets all environments. Returns: obs `[B, ...]` float32."""

    def env_step(self, action: Any) -> tuple:
        """Steps all environments, which reset themselves at the end of an episode.

        Returns: `(next_obs, final_obs, reward, terminated, truncated)`: observations after the
            automatic reset and before it `[B, ...]`, reward `[B]` float32, two bool `[B]`.
        """

    def agent_act(self, *args: Any, **named: Any) -> Any:
        """Calls `Actor.act(*args, **named, noise=noise)`.

        The noise is `[B, Actor.noise_size]`, uniform in [0, 1). If `act` has no parameter `noise`,
        it is the last positional argument.
        """

    def agent_learn(self, *args: Any, **named: Any) -> Any:
        """Calls `Learner.learn(msrl, *args, **named)`, which static analysis inlines."""

    def replay_insert(self, *values: Any, keep: int = 0, into: str = "") -> None:
        """Appends one step of every environment (values `[B, ...]`) to the trajectory buffer.

        Args:
            values: the arrays of the step, or one NamedTuple or frozen dataclass of them, which a
                sample returns.
            keep: records to keep over all environments, the newest `keep // B` of each; 0: records
                are kept until the next sample.
            into: name of the replay that keeps them, if a program has several.
        """

    def replay_sample(
        self, count: int = 0, by: str = "stratified", steps: int = 0, of: str = ""
    ) -> tuple:
        """Samples the replay.

        Without `count`: the steps inserted since the last sample, in order. With `count`: a random
        batch of the kept records.

        Args:
            count: size of the batch; it does not depend on the placement. If it is no multiple of
                B, the rest is drawn from all environments together, and every learner gets the
                whole batch. With `priority` it must be a multiple.
            by: `stratified`: uniform with replacement, equally many of each environment.
                `uniform`: with replacement, from the records of all environments together.
                `distinct`: likewise without replacement. `priority`: equally many of each
                environment, in proportion to priorities. A new record gets the largest priority
                in its environment.
            steps: draws windows of this many consecutive records of one environment instead; a
                window ends at the newest record at the latest. With `priority`, the priority of a
                window's first record counts.
            of: name of the kept replay that is drawn from.

        Returns: one `[n, B, ...]` for each inserted value, or the NamedTuple of them; n = T after a
            loop over `steps()`. With a count `[count, ...]`; with windows `[count, steps, ...]`.
            With `priority`, two more, `(batch, ids, odds)` of a NamedTuple: ids and odds `[count]`,
            the probability ratio of each record to a uniform draw. `odds ** -beta` over its maximum
            are the importance weights of Schaul et al. 2016.
        """

    def replay_update(self, ids: Any, priorities: Any, of: str = "") -> None:
        """Sets the priorities `[count]` of sampled records (|error| ** alpha, Schaul et al.).

        `of` is the name of their replay, as in `replay_sample`.
        """

    def uniform(self, count: int, size: int) -> Any:
        """Draws random numbers `[count, size]` in [0, 1) for a batch, anew in each call.

        As in a sample, each environment has equally many rows; if B does not divide the count,
        every learner gets all of them.
        """

    def dataset_windows(self, path: str, count: int, length: int) -> tuple:
        """Reads windows of consecutive steps of a data set, the next ones in each call.

        Every window is read once in an epoch, in an order that follows from the seed. Steps after
        the end of a record are zero.

        Args:
            path: file made by `msrl dataset`, with this environment's observations and actions.
            count: number of windows; B must divide it.
            length: steps of a window.

        Returns: `(obs, action, reward, return_to_go, step, mask)`, each `[count, length, ...]`.
            return_to_go is the undiscounted sum of a step's reward and all that follow, step the
            step's index in its episode (int32), and mask whether the step exists (bool).
        """

    def dataset_transitions(self, path: str, count: int) -> tuple:
        """Reads single transitions of a data set, the next ones in each call.

        Every step whose successor is known is read once in an epoch, in an order that follows from
        the seed: a step that terminated has next_obs 0; a step that was truncated is left out.

        Args:
            path: file made by `msrl dataset`, with this environment's observations and actions.
            count: number of transitions; B must divide it.

        Returns: `(obs, action, reward, terminated, next_obs)`, each `[count, ...]`.
        """

    def joint(self, value: Any) -> Any:
        """Concatenates the values of all agents: `[B, A, ...]` becomes `[B, n]` (a joint state).

        This is the only operation that mixes agents. Pass its result through `boundary("state",
        ...)`, so that a policy that shards agents can compute it where all agents are together.
        """

    def boundary(self, name: str, value: Any) -> Any:
        """Marks a value (or every value of a tuple) where a policy may cut. Returns: the value.

        Most marks are implied: the results of `env_reset` and `env_step` are `observation`, those
        of a sample `batch` and those of `gradient` `gradient`; the argument of `env_step` is
        `action`, those of `replay_insert` `transition`, those of `replay_update` `priority`, and
        statistics of the batch passed to `update` `gradient`. A boundary of such a name moves the
        mark.
        """

    def iterations(self) -> Iterable[int]:
        """Iterates over training iterations; the body is one synchronous step of the system."""

    def steps(self) -> Iterable[int]:
        """Iterates over `config.num_steps` environment steps."""

    def epochs(self, count: int) -> Iterable[int]:
        """Iterates over `count` passes over a batch."""

    def minibatches(self, count: int, values: tuple, steps: int = 0) -> Iterable[tuple]:
        """Iterates over random minibatches of a tuple or NamedTuple of values `[T, B, ...]`.

        A minibatch has each value as `[n, ...]`.

        Each environment has its own permutation of the T steps. Minibatch k takes the k-th part of
        every environment's permutation, so minibatches do not depend on the placement (a stratified
        draw, specific to this project). n = T B / count, and count must divide T.

        With `steps` each row is a segment of consecutive steps of an environment, and segments are
        permuted, for training that needs the steps in order: values as `[n, steps, ...]`, n = T B /
        (count * steps). The product of count and steps must divide T.
        """

    def gradient(
        self, loss: Callable, network: nn.Cell, *args: Any, rows: bool = False, **named: Any
    ) -> tuple:
        """Differentiates the mean over all samples of a per-sample loss.

        `loss(*args)` returns `[n]`, or a tuple whose first value is the loss `[n]` and whose others
        are statistics `[n]`. With segments it returns `[n, steps]`, where each step is a sample.

        Args:
            loss: a method of the learner.
            network: the cell whose parameters are differentiated by.
            args: arguments of the loss.
            named: those that are given by name.
            rows: whether to return the values of each sample too, such as its TD error.

        Returns: `(grads, means)`: gradients by `network.trainable_params()`, and the means of the
            values that `loss` returns, over the samples of all workers; of one value it is also a
            number. With `rows`, a third: the tuple of these values, each `[n]`, for the samples of
            the batch.
        """

    def update(self, method: Callable, *args: Any, **named: Any) -> None:
        """Calls a method that changes parameters or learner state, with replicated arguments."""

    def mean(self, *values: Any, keep: int = 0) -> Any:
        """Returns means over all samples of all workers: (sum of local sums) / (global count).

        Args:
            values: arrays with an axis of environments, reduced in one collective.
            keep: number of trailing axes that are not reduced, such as features, or environments
                for a result of each.

        Returns: one result for one value, else a tuple.
        """

    def sum(self, *values: Any, keep: int = 0) -> Any:
        """Returns sums over all samples of all workers, like `mean`."""

    def max(self, *values: Any, keep: int = 0) -> Any:
        """Returns maxima over all samples of all workers, like `mean`."""

    def min(self, *values: Any, keep: int = 0) -> Any:
        """Returns minima over all samples of all workers, like `mean`."""

    def env_steps(self) -> Any:
        """Returns the global environment steps before this iteration, float32 (for schedules)."""

    def env_index(self) -> Any:
        """Returns the number of each environment, `[B]` int32, from 0 to `num_envs` - 1.

        It is the same under every policy, so each environment may have its own exploration.
        """

    def agent_index(self) -> Any:
        """Returns the numbers of an environment's agents, `[A]` int32, from 0.

        An agent's is the same under every policy, also on a rank that holds some of the agents
        only; so each may have its own network, and find its part of a `joint` value.
        """

    def report(self, metrics: dict[str, Any]) -> None:
        """Sends named scalars to the coordinator."""


class Actor(nn.Cell):
    """An actor chooses actions; it reads parameters and never changes them."""

    noise_size: int = 0
    """Uniform random numbers that `act` uses for each environment (with teams: agent) and step."""

    def __setattr__(self, name: str, value: Any) -> None:
        keep_attribute(self, name, value)

    def act(self, obs: Any, noise: Any) -> Any:
        """Returns the action and other values for the training loop; row b depends on row b only.

        Several values are a tuple, a NamedTuple, a dataclass or a dictionary: the action is
        the first one, or has this name.

        Args:
            obs: `[B, ...]`; `train` may pass further arguments after it, or by name.
            noise: `[B, noise_size]` float32, uniform in [0, 1).
        """
        raise NotImplementedError


def bound_to_act(
    act: Callable, args: tuple, named: dict[str, Any], noise: Any = None
) -> inspect.BoundArguments:
    """Binds the arguments of `msrl.agent_act` to the parameters of an actor's method.

    Args:
        act: `act` or `act_greedily`.
        args: the positional arguments.
        named: the keyword arguments.
        noise: the random numbers; None: the method takes none.

    Raises:
        TypeError: the method does not take these arguments.
    """
    signature = inspect.signature(act)
    if noise is not None and "noise" in signature.parameters:
        named = {**named, "noise": noise}
    elif noise is not None:
        args = (*args, noise)
    return signature.bind(*args, **named)


def in_order(function: Callable, args: tuple, named: dict[str, Any]) -> tuple:
    """Returns the arguments of a loss or an update in the order of its parameters.

    Raises:
        TypeError: it does not take these arguments in order.
    """
    if not named:
        return args
    bound = inspect.signature(function).bind(*args, **named)
    if bound.kwargs:
        raise TypeError(f"{next(iter(bound.kwargs))!r} can only be given by name")
    return bound.args


class Learner(nn.Cell):
    """A learner turns a batch into gradients and updates of the parameters."""

    def __setattr__(self, name: str, value: Any) -> None:
        keep_attribute(self, name, value)

    def learn(self, msrl: Msrl, *batch: Any) -> dict[str, Any]:
        """Runs one learning phase; analysed statically, like `Trainer.train`. Returns: metrics."""
        raise NotImplementedError


class Trainer:
    """One algorithm: a configuration class, an actor, a learner and the loop.

    Args:
        config: an instance of `Config`, a frozen dataclass with at least `env`, `seed`,
            `num_envs`, `num_steps` and `total_steps`.
        spec: the environment's spec.

    Attributes:
        Config: the configuration class.
        multi_agent: whether the algorithm is for environments with teams of agents.
        masks_actions: whether the algorithm takes an action mask from the end of observations, see
            `EnvironmentSpec.action_mask`.
        two_players: whether the algorithm is for games of two players, too, see
            `EnvironmentSpec.two_players`.
        max_lag: number of iterations that the actors' parameters may be older where `--policy auto`
            chooses the schedule; `--schedule lag=` may ask for more.
        max_staleness: likewise the number of updates in an asynchronous schedule, whose batches are
            also smaller; 0: `--policy auto` chooses a synchronous one.

    Raises:
        ConfigError: only one of algorithm and environment has an axis of agents, or the environment
            has an action mask or two players, and the algorithm is not for such.
    """

    Config: ClassVar[type]
    multi_agent: ClassVar[bool] = False
    masks_actions: ClassVar[bool] = False
    two_players: ClassVar[bool] = False
    max_lag: ClassVar[int] = 0
    max_staleness: ClassVar[int] = 0
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
        if spec.action_mask and not self.masks_actions:
            raise ConfigError(
                f"{spec.name} has an action mask, which {type(self).__name__} does not take: train "
                "an algorithm with `action masks` in `msrl list`, or leave the mask out by "
                f"'{spec.name},action_mask=false' (a trainer that takes it says "
                "masks_actions = True)"
            )
        if spec.two_players and not self.two_players:
            raise ConfigError(
                f"{spec.name} is a game of two players, which {type(self).__name__} does not take: "
                "train alphazero or muzero, or name an opponent, "
                f"--env {spec.name},opponent=random (a trainer that negates the value of the "
                "other player's states says two_players = True)"
            )
        self.config = config
        self.spec = spec

    def train(self, msrl: Msrl) -> None:
        """Runs the training loop."""
        raise NotImplementedError
