"""Evaluates a trained policy in the training loop, without updates."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from mindspore_rl import programs
from mindspore_rl.datasets.windows import blank_windows
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import CheckpointError, ConfigError, MsrlError, ProgramError
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.operators import leaves, put_into
from mindspore_rl.rl.parameters import named_parameters, set_parameter
from mindspore_rl.runtime import checkpoint, resuming
from mindspore_rl.runtime.best_checkpoint import chosen
from mindspore_rl.runtime.rank.episodes import team_reward
from mindspore_rl.runtime.reference import Reference
from mindspore_rl.trained.video import Film

MAX_STEPS = 100_000
Watch = Callable[..., None]
"""Called with obs, action, reward, terminated and truncated of a step, `[B, ...]` each, and whether
each environment's first episode is still running, `[B]` bool."""


def evaluate(
    run_dir: Path,
    episodes: int,
    seed: int,
    sample: bool,
    env: str | None = None,
    which: str = "last",
    watch: Watch | None = None,
    assignments: Sequence[str] = (),
    film: Film | None = None,
) -> list[float]:
    """Plays one episode in each of `episodes` environments.

    It runs the training loop instead of the actor alone, because the loop knows the arguments of
    `act` (a recurrent state, an exploration rate) and what happens to its result.

    Args:
        run_dir: a run directory with a checkpoint.
        episodes: number of episodes.
        seed: of the environments, and of actions if they are sampled.
        sample: acts as in training, instead of by `Actor.act_greedily` if the actor has it.
        env: name of an environment like the one of the training; None: that one.
        which: checkpoint, see `best_checkpoint.chosen`.
        watch: called with every step.
        assignments: `key=value` for keys of the configuration that differ from training.
        film: records the first environment's episode.

    Raises:
        MsrlError: there is no such run or checkpoint, or it was trained with other observations or
            actions.

    Returns: the return of each episode.
    """
    if episodes < 1:
        raise MsrlError(f"{episodes} episodes, expected at least 1")
    if seed < 0:
        raise MsrlError(f"seed is {seed}, expected at least 0")
    mindspore_device.use()
    trained = build_trained(run_dir, episodes, seed, env, which, assignments)
    played = Played(*trained, greedy=not sample, watch=watch, film=film)
    with contextlib.suppress(Over):
        played.run()
    if played.under_way.any():
        text = f"msrl: {played.under_way.sum()} episodes were not over after {MAX_STEPS} steps"
        print(text, file=sys.stderr)
    return played.returns.tolist()


class Over(Exception):  # noqa: N818
    """Ends the evaluated loop."""


class Played(Reference):
    """`msrl` of a training loop that resumes from a checkpoint, without learning.

    The loop ends once each environment has ended an episode.

    Args:
        trainer: with the parameters of the checkpoint.
        done: metadata of the checkpoint.
        greedy: whether to act by `act_greedily`, if the actor has it.
        watch: called with every step.
        film: records the first environment's episode.
    """

    def __init__(
        self,
        trainer: Any,
        done: dict[str, Any],
        greedy: bool,
        watch: Watch | None = None,
        film: Film | None = None,
    ) -> None:
        super().__init__(trainer, sys.maxsize, first_iteration=done["iteration"])
        self.returns = np.zeros(self.num_envs)
        self.under_way = np.ones(self.num_envs, bool)
        self._done, self._steps_played = done, 0
        self._zeros: dict[tuple, tuple] = {}
        self._watch, self._film, self._obs = watch, film, Tensor(0.0)
        self._greedily = getattr(trainer.actor, "act_greedily", None) if greedy else None

    def agent_act(self, *args: Any) -> Any:
        """Replaces the action, the first result of `act`, by the greedy action."""
        acted = super().agent_act(*args)
        if self._greedily is None:
            return acted
        try:
            inspect.signature(self._greedily).bind(*args)
        except TypeError as error:
            raise ProgramError(
                f"{type(self.trainer.actor).__name__}.act_greedily is given what the loop gives to "
                f"msrl.agent_act, {len(args)} arguments, and does not take them ({error}): give it "
                "the parameters of act but noise, or play with --sample"
            ) from error
        greedy = self._greedily(*args)
        action = greedy[0] if isinstance(greedy, tuple) else greedy
        return (action, *acted[1:]) if isinstance(acted, tuple) else action

    def env_reset(self) -> Tensor:
        """Stores the observations of the first step."""
        self._obs = super().env_reset()
        self._take_picture()
        return self._obs

    def env_step(self, action: Tensor) -> tuple[Tensor, ...]:
        """Sums rewards up to the end of each environment's first episode."""
        outcome = super().env_step(action)
        next_obs, _, reward, terminated, truncated = outcome
        if self._watch is not None:
            step = (self._obs, action, reward, terminated, truncated)
            self._watch(*(part.asnumpy() for part in step), self.under_way.copy())
        self._obs = next_obs
        self.returns += team_reward(reward.asnumpy()) * self.under_way
        self.under_way &= ~(terminated.asnumpy() | truncated.asnumpy())
        self._take_picture()
        self._steps_played += 1
        if not self.under_way.any() or self._steps_played == MAX_STEPS:
            raise Over
        return outcome

    def _take_picture(self) -> None:
        if self._film is not None and self.under_way[0]:
            self._film.take(self.environment.picture())

    def env_steps(self) -> Tensor:
        """Returns the environment steps of the checkpoint."""
        return Tensor(np.float32(self._done["env_steps"]))

    def replay_insert(self, *values: Any, keep: int = 0) -> None:
        """Keeps only the last record, since nothing is learned."""
        super().replay_insert(*values, keep=min(keep, self.num_envs))

    def replay_sample(self, count: int = 0, by: str = "stratified", steps: int = 0) -> Any:
        """See `api.Msrl`; draws at least as many records as there are episodes."""
        by = by if by == "priority" else "stratified"
        found = super().replay_sample(max(count, self.num_envs) if count else 0, by)
        # A window consists of copies of the only record.
        windows = (ops.stack([column] * steps, 1) for column in leaves(found))
        return put_into(found, windows) if steps else found

    def uniform(self, count: int, size: int) -> Tensor:
        """See `api.Msrl`."""
        return super().uniform(max(count, self.num_envs), size)

    def dataset_windows(self, path: str, count: int, length: int) -> tuple[Tensor, ...]:
        """Returns blank windows, since nothing is learned; the data set need not exist."""
        shape = max(count, self.num_envs), length
        return tuple(map(Tensor, blank_windows(self.trainer.spec, *shape)))

    def gradient(self, loss: Callable, network: Any, *args: Any) -> tuple:
        """Returns zeros with the shapes of gradients and losses."""
        key = (loss, id(network))
        if key not in self._zeros:
            means = tuple(Tensor(np.float32(0)) for _ in leaves(loss(*args)))
            grads = tuple(ops.zeros_like(p) for p in network.trainable_params())
            self._zeros[key] = grads, means
        return self._zeros[key]

    def update(self, method: Any, *args: Any) -> None:
        """Does nothing."""

    def report(self, metrics: dict[str, Any]) -> None:
        """Does nothing."""


def build_trained(
    run_dir: Path,
    episodes: int,
    seed: int,
    env: str | None = None,
    which: str = "last",
    assignments: Sequence[str] = (),
) -> tuple[Any, dict[str, Any]]:
    """Builds a run's trainer with the parameters of a checkpoint, for evaluation.

    Returns: the trainer, and the checkpoint's metadata.
    """
    plan = load_plan(run_dir)
    folder = run_dir / checkpoint.FOLDER
    if which == "last":
        path, _, damaged = checkpoint.load_newest(folder, replay=False)
        for text in damaged:
            print(f"msrl: {text}", file=sys.stderr)
    else:
        path = chosen(folder, which)
    arrays, done = checkpoint.load(path, replay=False)
    resuming.check_job(path, done, plan)
    if new := [name for name, value in plan.carried.items() if not value.split]:
        print(
            f"msrl: the loop carries {', '.join(new)} from iteration to iteration, which begins "
            "anew here: what acting needs of training belongs in a Parameter",
            file=sys.stderr,
        )
    env = env or plan.environment
    trained, played = spec(plan.environment), spec(env)
    for part in ("obs_shape", "obs_dtype", "action_space", "teams"):
        if getattr(played, part) != getattr(trained, part):
            raise MsrlError(
                f"{env} has the {part} {getattr(played, part)}, and {run_dir} was trained in "
                f"{plan.environment} with {getattr(trained, part)}: name another --env"
            )
    if played.warning:
        print(f"msrl: {env}: {played.warning}", file=sys.stderr)
    changed = {"env": env, "num_envs": episodes, "seed": seed}
    if set(changed) & {text.partition("=")[0].strip() for text in assignments}:
        raise ConfigError("env, num_envs and seed are --env, --episodes and --seed here")
    try:
        config = plan.config | changed
        trainer = programs.load_trainer(plan.algorithm, config, played, assignments)
    except ConfigError as error:
        raise ConfigError(
            f"{error} (each episode has an environment of its own: num_envs={episodes})"
        ) from error
    for name, parameter in named_parameters(trainer, "state"):
        value = arrays.get(f"parameters/{name}")
        if value is None or value.shape != tuple(parameter.shape):
            raise CheckpointError(
                f"checkpoint {path} has no {name} of shape {tuple(parameter.shape)}: "
                f"{plan.algorithm['file']} is not as it was when it was trained"
            )
        set_parameter(parameter, value)
    return trainer, done
