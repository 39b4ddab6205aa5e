"""Plays a trained policy."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl import programs
from mindspore_rl.environments.environment import spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.lowering.plan import load_plan
from mindspore_rl.rl import random
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.episodes import team_reward

MOST_STEPS = 100_000


def evaluate(
    run_dir: Path, episodes: int, seed: int, sample: bool, env: str | None = None
) -> list[float]:
    """Plays one episode in each of `episodes` environments.

    Args:
        run_dir: a run directory with a checkpoint.
        episodes: how many.
        seed: of the environments, and of actions if they are sampled.
        sample: act as in training, rather than by `Actor.act_greedily` where there is one.
        env: the name of an environment like the one trained in; that one if None.

    Raises:
        MsrlError: there is no such run, or it was trained on other observations or actions.

    Returns: the return of each episode.
    """
    import mindspore as ms  # noqa: PLC0415

    from mindspore_rl import device  # noqa: PLC0415
    from mindspore_rl.environments.local import LocalEnvironment  # noqa: PLC0415

    if episodes < 1:
        raise MsrlError(f"{episodes} episodes, expected at least 1")
    device.use()
    trainer, env = _trained(run_dir, env)
    actor = trainer.actor
    environment = LocalEnvironment(env, spec(env).in_graph, range(episodes), seed)
    greedy = None if sample else getattr(actor, "act_greedily", None)
    agents = random.all_agents(*trainer.spec.agent_shape) if trainer.spec.teams else None

    def noise(purpose: str, step: int, size: int) -> ms.Tensor | None:
        if not size:
            return None
        drawn = random.uniform(
            seed,
            random.stream(purpose),
            np.array([step]),
            np.arange(episodes),
            size,
            agents if purpose == "act" else None,
        )
        return ms.Tensor(drawn[0])

    returns, playing = np.zeros(episodes), np.ones(episodes, bool)
    obs = environment.reset(noise("reset", 0, environment.noise_size))
    for step in range(MOST_STEPS):
        if greedy:
            action = greedy(obs)
        else:
            drawn = noise("act", step, actor.noise_size)
            action = actor.act(obs, *(() if drawn is None else (drawn,)))
            action = action[0] if isinstance(action, tuple) else action
        obs, _, reward, terminated, truncated = environment.step(
            action, noise("step", step, environment.noise_size)
        )
        returns += team_reward(reward.asnumpy()) * playing
        playing &= ~(terminated.asnumpy() | truncated.asnumpy())
        if not playing.any():
            break
    else:
        text = f"msrl: {playing.sum()} episodes were not over after {MOST_STEPS} steps"
        print(text, file=sys.stderr)
    environment.close()
    return returns.tolist()


def _trained(run_dir: Path, env: str | None) -> tuple[Any, str]:
    """Builds a run's trainer with the parameters of its newest checkpoint.

    Returns: the trainer, and the environment to play in.
    """
    from mindspore_rl.runtime.parameters import set_parameter  # noqa: PLC0415

    try:
        plan = load_plan(run_dir)
    except OSError as error:
        raise MsrlError(f"{run_dir} is not a run directory ({error.strerror})") from error
    path, damaged = checkpoint.load_newest(run_dir / checkpoint.FOLDER)
    for text in damaged:
        print(f"msrl: {text}", file=sys.stderr)
    arrays, _ = checkpoint.load(path)
    env = env or plan.environment
    trained, played = spec(plan.environment), spec(env)
    for part in ("obs_shape", "action_space", "teams"):
        if getattr(played, part) != getattr(trained, part):
            raise MsrlError(
                f"{env} has the {part} {getattr(played, part)}, and {run_dir} was trained in "
                f"{plan.environment} with {getattr(trained, part)}: name another --env"
            )
    trainer = programs.load_trainer(plan.algorithm, plan.config, trained)
    for name, parameter in trainer.actor.parameters_and_names():
        set_parameter(parameter, arrays[f"parameters/actor.{name}"])
    return trainer, env
