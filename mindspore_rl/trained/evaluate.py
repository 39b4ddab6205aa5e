"""Evaluates a trained policy in the training loop, without updates."""

import contextlib
import dataclasses
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments.options import mask_option
from mindspore_rl.environments.registry import built_once, spec, warning
from mindspore_rl.environments.tensor_env import LocalEnvironment
from mindspore_rl.errors import CheckpointError, ConfigError, MsrlError
from mindspore_rl.plan.plan import SHUFFLES, load_plan
from mindspore_rl.platform import mindspore_device
from mindspore_rl.platform.stdio import say
from mindspore_rl.rl.parameters import named_parameters, set_parameter
from mindspore_rl.runtime import checkpoint, resuming
from mindspore_rl.runtime.best_checkpoint import chosen
from mindspore_rl.runtime.rank.episodes import team_reward
from mindspore_rl.trained.acting import Acting, Over
from mindspore_rl.trained.still import acts_alone
from mindspore_rl.trained.video import Film

MAX_STEPS = 100_000
TOLD_EVERY_S, ENDLESS_S, ENDLESS_STEPS = 5.0, 10.0, 1000
Watch = Callable[..., None]
"""Called with obs, action, reward, terminated and truncated of a step, `[B, ...]` each, and whether
each environment's first episode is still running, `[B]` bool."""


def evaluate(
    run_dir: Path,
    episodes: int,
    seed: int,
    sample: bool,
    env: str | None = None,
    which: str | Path = "last",
    watch: Watch | None = None,
    assignments: Sequence[str] = (),
    film: Film | None = None,
) -> list[float]:
    """Plays one episode in each of `episodes` environments.

    It runs the training loop instead of the actor alone, because the loop knows the arguments of
    `act` (a recurrent state, an exploration rate) and what happens to its result; except where a
    trial shows that the greedy action of an observation is all, see `still.acts_alone`.

    Args:
        run_dir: a run directory with a checkpoint.
        episodes: number of episodes.
        seed: of the environments, and of actions if they are sampled.
        sample: acts as in training, instead of by `Actor.act_greedily` if the actor has it.
        env: name of an environment like the one of the training; None: that one.
        which: checkpoint, see `best_checkpoint.chosen`, or its file.
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
    in_python = not sample and not trained[0].spec.in_graph
    act = acts_alone(*trained, episodes) if in_python else None
    with contextlib.suppress(Over):
        played.run(act)
    if played.under_way.any():
        say(f"{played.under_way.sum()} episodes were not over after {MAX_STEPS} steps")
    return played.returns.tolist()


class Played:
    """The environments of an evaluation, with the loop that acts in them.

    The loop ends once each environment has ended an episode.

    Args:
        trainer: with the parameters of the checkpoint.
        done: metadata of the checkpoint.
        greedy: whether to act by `act_greedily`, if the actor has it.
        watch: called with every step.
        film: records the first environment's episode.

    Attributes:
        returns: of each environment's first episode up to now, `[B]`.
        under_way: which of these episodes are still running, `[B]` bool.
    """

    def __init__(
        self,
        trainer: Any,
        done: dict[str, Any],
        greedy: bool,
        watch: Watch | None = None,
        film: Film | None = None,
    ) -> None:
        config, in_graph = trainer.config, trainer.spec.in_graph
        num_envs, seed = config.num_envs, config.seed
        self._environment = LocalEnvironment(config.env, in_graph, range(num_envs), seed)
        self.noise_size = self._environment.noise_size
        self._loop = Acting(trainer, done, self, num_envs, seed, greedy)
        self.returns, self.under_way = np.zeros(num_envs), np.ones(num_envs, bool)
        self._watch, self._film, self._obs = watch, film, Tensor(0.0)
        self._steps_played, self._told = 0, time.monotonic()
        self._warn_at = self._told + ENDLESS_S

    def run(self, act: Callable[[Tensor], Any] | None = None) -> None:
        """Runs the training loop, or acts alone.

        Args:
            act: the actions of observations, for environments without random numbers.

        Raises:
            Over: each episode has ended, or there were `MAX_STEPS` steps.
        """
        with self._environment:
            if act is None:
                self._loop.run()
                return
            obs = self.reset(None)
            while True:
                obs = self.step(act(obs), None)[0]

    def reset(self, noise: Tensor | None) -> Tensor:
        """Resets the environments; see `LocalEnvironment.reset`."""
        self._obs = self._environment.reset(noise)
        self._take_picture()
        return self._obs

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Steps the environments, and sums rewards up to the end of each one's first episode."""
        outcome = self._environment.step(action, noise)
        next_obs, _, reward, terminated, truncated = outcome
        if self._watch is not None:
            step = (self._obs, action, reward, terminated, truncated)
            self._watch(*(part.asnumpy() for part in step), self.under_way.copy())
        self._obs = next_obs
        self.returns += team_reward(reward.asnumpy()) * self.under_way
        self.under_way &= ~(terminated.asnumpy() | truncated.asnumpy())
        self._take_picture()
        self._steps_played += 1
        self._tell()
        if not self.under_way.any() or self._steps_played == MAX_STEPS:
            raise Over
        return outcome

    def _tell(self) -> None:
        """Tells a user at a terminal how far the episodes are, and any user if none ends."""
        late = self._steps_played >= ENDLESS_STEPS and time.monotonic() >= self._warn_at
        if late and self.under_way.all():
            self._warn_at = math.inf
            say(
                f"no episode has ended in {self._steps_played:,} steps, and this goes on for up to "
                f"{MAX_STEPS:,}; if the environment never ends one, give it a time limit, for "
                "example by gymnasium's TimeLimit"
            )
        if time.monotonic() - self._told >= TOLD_EVERY_S and sys.stderr.isatty():
            self._told, over = time.monotonic(), (~self.under_way).sum()
            text = f"step {self._steps_played:,}: {over} of {len(self.under_way)} episodes are over"
            say(text)

    def _take_picture(self) -> None:
        if self._film is not None and self.under_way[0]:
            self._film.take(self._environment.picture())


@built_once()
def build_trained(
    run_dir: Path,
    episodes: int,
    seed: int,
    env: str | None = None,
    which: str | Path = "last",
    assignments: Sequence[str] = (),
) -> tuple[Any, dict[str, Any]]:
    """Builds a run's trainer with the parameters of a checkpoint, for evaluation.

    Returns: the trainer, and the checkpoint's metadata.
    """
    plan = load_plan(run_dir)
    folder = run_dir / checkpoint.FOLDER
    if isinstance(which, Path):
        path = which
    elif which == "last":
        path, _, damaged = checkpoint.load_newest(folder, replay=False)
        for text in damaged:
            say(text)
    else:
        path = chosen(folder, which)
    arrays, done = checkpoint.load(path, replay=False)
    resuming.check_job(path, done, plan)
    whole = [name for name, value in plan.carried.items() if not value.split]
    if new := [name for name in whole if not re.fullmatch(rf"{SHUFFLES}(_\d+)?", name)]:
        say(
            f"the loop carries {', '.join(new)} from iteration to iteration, which begins "
            "anew here: what acting needs of training belongs in a Parameter"
        )
    env = env or plan.environment
    trained, played = spec(plan.environment), spec(env)
    if plan.action_mask is None and mask_option(env) is False:
        trained = played  # the parameters are checked below
    for part in ("obs_shape", "obs_dtype", "action_space", "teams"):
        if getattr(played, part) != getattr(trained, part):
            raise MsrlError(
                f"{env} has the {part} {getattr(played, part)}, and {run_dir} was trained in "
                f"{plan.environment} with {getattr(trained, part)}: name another --env"
            )
    if plan.layout is not None and played.layout is not None and plan.layout.ordered:
        if plan.layout != played.layout:
            raise MsrlError(
                f"{env} observes {played.layout}, and {run_dir} was trained with {plan.layout}, "
                "whose numbers have another order or meaning: name another --env"
            )
        played = dataclasses.replace(played, layout=plan.layout)
    # A policy that learnt against itself plans against an opponent in the same way.
    played = dataclasses.replace(played, two_players=trained.two_players)
    if text := warning(env):
        say(f"{env}: {text}")
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
            if plan.action_mask is None and played.action_mask:
                unmasked = f"{resuming.NO_MASK_THEN} {env},{resuming.WITHOUT_MASK}"
                raise CheckpointError(f"checkpoint {path} {unmasked}")
            raise CheckpointError(
                f"checkpoint {path} has no {name} of shape {tuple(parameter.shape)}: "
                f"{plan.algorithm['file']} is not as it was when it was trained"
            )
        set_parameter(parameter, value)
    return trainer, done
