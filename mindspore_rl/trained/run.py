"""Training and its results from Python: `from mindspore_rl import train, load`."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.config import keys_of, resolve
from mindspore_rl.environments import registry
from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.jobs import training
from mindspore_rl.jobs.job import Job
from mindspore_rl.jobs.run_directory import check_trusted, earlier_job, tell_copies
from mindspore_rl.plan.plan import JOB_FILE, PLAN_FILE, Plan, load_plan
from mindspore_rl.runtime.coordinator.metrics import METRICS_FILE, read_lines
from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore
from mindspore_rl.trained import curves
from mindspore_rl.trained import export as exporting
from mindspore_rl.trained import video as filming

EVALUATION_SEED = 1_000_003
OWN_KEYS = ("env", "num_envs", "seed", "total_steps")
"""Words that are keys of every algorithm's configuration."""


def train(
    algorithm: str | Path | None = None,
    *,
    env: str | None = None,
    policy: str | Path | None = None,
    workers: int | None = None,
    config: Mapping[str, object] | str | Path | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
    total_steps: int | None = None,
    schedule: Mapping[str, object] | str | None = None,
    deployment: str | Path | None = None,
    device: str = Job.device,
    cells: str | None = None,
    run_dir: str | Path | None = None,
    resume: "str | Path | Run | None" = None,
    trust: bool = False,
    backend: str = Job.backend,
    stop_return: float | None = None,
    checkpoint_every: float = Job.checkpoint_every,
    timeout: float = Job.timeout,
    start_timeout: float | None = None,
    max_restarts: int = Job.max_restarts,
    replay_dir: str | Path = Job.replay_dir,
    profile: int = Job.profile,
    dump_graph: str | Path | None = None,
    wandb: str = Job.wandb,
    quiet: bool = Job.quiet,
    on_iteration: training.OnIteration | None = None,
) -> "Run":
    """Trains, as `msrl train` does; each word is a flag there, see `msrl train --help`.

    `config` is keys of the algorithm's configuration, or a YAML file of them; `schedule` keys of
    the policy's; `resume` a run to go on from. `on_iteration` is given the metrics of each
    iteration, as a line of metrics.jsonl has them. If it returns False, the run ends after the
    iteration that is under way, with a checkpoint; so it does after an exception, which is then
    raised. Of a run in this process (one rank, or backend="inproc") it is called in another thread.

    Ctrl-C ends the run after the current iteration, with a checkpoint, and what there is of it is
    returned; a second one ends it at once.

    Returns: the run.

    Raises:
        MsrlError: what is asked for cannot be.
        JobFailure: the job failed.
    """
    words: dict[str, Any] = dict(locals())
    prepare_mindspore()
    values = dict(config) if isinstance(config, Mapping) else {}
    values |= {key: words[key] for key in OWN_KEYS if words[key] is not None}
    if isinstance(schedule, Mapping):
        words["schedule"] = ",".join(f"{key}={value}" for key, value in schedule.items())
    if isinstance(resume, Run):
        words["resume"] = resume.path
    given = {key: _text(words[key]) for key in keys_of(Job) if words.get(key) is not None}
    for key in (*OWN_KEYS, "stop_return", *(["config"] if isinstance(config, Mapping) else [])):
        given.pop(key, None)
    job = resolve(Job, None, {}, (), values=given)
    if stop_return is not None:  # may be NaN, which a configuration may not
        if isinstance(stop_return, bool) or not isinstance(stop_return, int | float):
            raise ConfigError(f"stop_return is {stop_return!r}, expected a number, or nan: never")
        job = dataclasses.replace(job, stop_return=float(stop_return))
    trained = training.train(job, values, on_iteration)
    outcome = trained.outcome
    return Run(trained.run_dir, outcome.stopped, outcome.env_steps, outcome.mean_return)


def load(path: str | Path, *, checkpoint: str | int = "last", trust: bool = False) -> "Run":
    """A run that was trained, in this process or another.

    Args:
        path: its directory; what is in it is run.
        checkpoint: that is played: `last`, `best` (of the highest mean return over 100 episodes) or
            an iteration.
        trust: use it even if other users own it or can write it.

    Raises:
        MsrlError: it is no run directory, or others could have written it.
    """
    prepare_mindspore()
    path = Path(path)
    check_trusted(path, trust)
    if not (path / PLAN_FILE).is_file():
        raise MsrlError(f"{path} is not a run directory; expected one that `msrl train` wrote")
    return Run(path, checkpoint=str(checkpoint))


@dataclasses.dataclass(frozen=True)
class Run:
    """A run and its directory.

    Attributes:
        path: the directory.
        stopped: what ended it: `threshold`, `steps`, `on_iteration` or `interrupted`; None of one
            that was loaded.
        env_steps: environment steps trained; None of one that was loaded.
        mean_return: of the last 100 episodes, reward units; None of one that was loaded.
        checkpoint: that is played, see `load`.
    """

    path: Path
    stopped: str | None = None
    env_steps: int | None = None
    mean_return: float | None = None
    checkpoint: str = "last"

    @property
    def plan(self) -> Plan:
        """How it was distributed, and its configuration (`plan.config`)."""
        return load_plan(self.path)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one an iteration, or of a very long run one a second."""
        return list(read_lines(self.path / METRICS_FILE))

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int = EVALUATION_SEED,
        sample: bool = False,
        env: str | None = None,
        config: Mapping[str, object] | Sequence[str] = (),
        video: str | Path | None = None,
        render: bool = False,
    ) -> np.ndarray:
        """Plays the policy of the checkpoint, as `msrl eval` does.

        Args:
            episodes: how many.
            seed: of the environments.
            sample: sample actions instead of taking the most likely.
            env: play in this environment; that of the training if None.
            config: keys of the algorithm's configuration that are not as in training.
            video: a file to be made of the first episode: .mp4, .gif.
            render: show it on the screen; of one episode only.

        Returns: `[episodes]` float64, the return of each, reward units.

        Raises:
            MsrlError: it cannot be played so.
        """
        from mindspore_rl.trained.evaluate import evaluate  # noqa: PLC0415  (MindSpore)

        if (self.path / JOB_FILE).is_file():
            earlier = earlier_job(self.path)
            tell_copies(self.path, earlier["algorithm"], env or earlier["config"]["env"])
        given = [f"{k}={v}" for k, v in config.items()] if isinstance(config, Mapping) else config
        film = None if video is None else filming.Film(Path(video))
        if render and (film is not None or episodes != 1):
            raise ConfigError("on the screen one episode is shown, and no video is made of it")
        if film is not None or render:
            env = filming.drawn(env or self.plan.environment, "human" if render else "rgb_array")
        played = (self.path, episodes, seed, sample, env, self.checkpoint)
        returns = evaluate(*played, assignments=given, film=film)
        if film is not None:
            film.save()
        return np.array(returns)

    def plot(
        self,
        metric: str = "mean_return",
        over: str = "env_steps",
        output: str | Path | None = None,
    ) -> Any:
        """Draws a learning curve, as `msrl plot` does.

        Args:
            metric: a key of metrics.jsonl, also of `values`.
            over: `env_steps`, `wall_s` or `iteration`.
            output: a picture to be made, .png, .svg or .pdf.

        Returns: a figure of matplotlib's, which a notebook shows.

        Raises:
            MsrlError: there is no such metric, or no matplotlib.
        """
        found = curves.curves([self.path], metric, over)
        return curves.draw(found, metric, over, None if output is None else Path(output))

    def export(
        self,
        format: str = "onnx",  # noqa: A002  (the flag's name)
        output: str | Path | None = None,
        batch: int = 1,
    ) -> Path:
        """Writes the policy of the checkpoint as a file of its own, as `msrl export` does.

        Args:
            format: `onnx` or `mindir`.
            output: the file; `policy.onnx` or `policy.mindir` in the run if None.
            batch: observations that the file takes at a time.

        Returns: the file, which has been compared with the policy.

        Raises:
            MsrlError: the policy is no function of the observation, or cannot be written so.
        """
        return exporting.export(self, format, None if output is None else Path(output), batch)[0]

    def make_env(self, render_mode: str | None = None) -> Any:
        """One environment as the policy knows it, to be stepped by hand.

        It gives observations that `policy` takes, and takes actions that `policy` gives, whatever
        the spaces of the environment that it wraps: flattened, counted and bounded as in training.

        Args:
            render_mode: such as "human".

        Returns: a gym.Env or a gymnasium.Env.

        Raises:
            MsrlError: the environment is of another kind, or cannot be made.
        """
        name = self.plan.environment
        return registry.make_single(filming.drawn(name, render_mode) if render_mode else name)

    @cached_property
    def policy(self) -> Any:
        """That of the checkpoint, a `runtime.acting.Policy`.

        Raises:
            MsrlError: there is no checkpoint that can be used.
        """
        from mindspore_rl.trained.policy import Policy  # noqa: PLC0415  (MindSpore)

        return Policy(self.path, self.checkpoint)


def _text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
