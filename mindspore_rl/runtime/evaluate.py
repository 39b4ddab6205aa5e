"""Plays a trained policy."""

from pathlib import Path

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

    from mindspore_rl.environments.local import LocalEnvironment  # noqa: PLC0415
    from mindspore_rl.runtime.parameters import set_parameter  # noqa: PLC0415

    try:
        plan = load_plan(run_dir)
    except OSError as error:
        raise MsrlError(f"{run_dir} is not a run directory ({error.strerror})") from error
    if episodes < 1:
        raise MsrlError(f"{episodes} episodes, expected at least 1")
    path, _ = checkpoint.load_newest(run_dir / "checkpoints")
    arrays, _ = checkpoint.load(path)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    env = env or plan.environment
    trained, played = spec(plan.environment), spec(env)
    for part in ("obs_shape", "action_space", "teams"):
        if getattr(played, part) != getattr(trained, part):
            raise MsrlError(
                f"{env} has the {part} {getattr(played, part)}, and {run_dir} was trained in "
                f"{plan.environment} with {getattr(trained, part)}: name another --env"
            )
    trainer = programs.load_trainer(plan.algorithm, plan.config, trained)
    actor = trainer.actor
    for name, parameter in actor.parameters_and_names():
        set_parameter(parameter, arrays[f"parameters/actor.{name}"])
    environment = LocalEnvironment(env, played.in_graph, range(episodes), seed)
    greedy = getattr(actor, "act_greedily", None)

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
        if greedy and not sample:
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
    environment.close()
    return returns.tolist()
