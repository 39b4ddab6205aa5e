"""Training and its results from Python: `from mindspore_rl import train, load`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from mindspore_rl.config import unknown
from mindspore_rl.environments import by_callable, registry
from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.jobs import training
from mindspore_rl.jobs.job import Job
from mindspore_rl.jobs.options import algorithm_keys
from mindspore_rl.jobs.run_directory import check_trusted, earlier_job, tell_copies
from mindspore_rl.plan.plan import JOB_FILE, PLAN_FILE, Plan, load_plan
from mindspore_rl.runtime.coordinator.metrics_file import EVALUATIONS_FILE, METRICS_FILE, read_lines
from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore
from mindspore_rl.trained import curves, pretrained
from mindspore_rl.trained import export as exporting
from mindspore_rl.trained import video as filming

EVALUATION_SEED = 1_000_003
P = ParamSpec("P")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted(Job):
    """The job of `train`, with its callback."""

    on_iteration: training.OnIteration | None = None


def _with_fields_of(
    job: Callable[P, Wanted],
) -> Callable[[Callable[[Wanted], "Run"]], Callable[P, "Run"]]:
    """Decorator: a function of a job takes the job's fields as its keywords."""
    signature = inspect.signature(job).replace(return_annotation="Run")

    def decorate(function: Callable[[Wanted], "Run"]) -> Callable[P, "Run"]:
        @functools.wraps(function)
        def called(*args: P.args, **options: P.kwargs) -> "Run":
            for key in options.keys() - signature.parameters.keys():
                text, of = unknown(key, signature.parameters), args[0] if args else ""
                if key in algorithm_keys(str(options.get("algorithm", of))):
                    text = f"{key} is a key of the algorithm: config={{{key!r}: {options[key]!r}}}"
                raise TypeError(f"{function.__name__}: {text}")
            return function(job(*args, **options))

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorate


@_with_fields_of(Wanted)
def train(job: Wanted) -> "Run":
    """Trains, as `msrl train` does; each word is a flag there, see `msrl train --help`.

    `config` holds keys of the algorithm's configuration, or names a YAML file of them; `schedule`
    holds keys of the policy's schedule; `resume` is a run to resume. `on_iteration` is called with
    the metrics of each iteration, like a line of metrics.jsonl. If it returns False, the run ends
    after the current iteration, with a checkpoint; likewise if it raises an exception, which is
    then raised here. If the run is in this process (one rank, or backend="inproc"), it is called in
    another thread.

    Ctrl-C ends the run after the current iteration, with a checkpoint, and returns the run so far;
    a second Ctrl-C ends it at once.

    Returns: the run.

    Raises:
        MsrlError: the arguments are invalid, or the job cannot be started.
        JobFailure: the job failed.
    """
    prepare_mindspore()
    trained = training.train(job, None, job.on_iteration)
    outcome = trained.outcome
    return Run(trained.run_dir, outcome.stopped, outcome.env_steps, outcome.mean_return)


def load(path: str | Path, *, checkpoint: str | int = "last", trust: bool = False) -> "Run":
    """Loads a run that was trained in this process or another.

    Args:
        path: the run directory, whose code is executed; or `pretrained:NAME`, a policy of the
            package, of which a run directory is made in `runs`.
        checkpoint: to evaluate: `last`, `best` (with the highest mean return over 100 episodes) or
            an iteration.
        trust: use it even if other users own it or can write it.

    Raises:
        MsrlError: it is no run directory, or other users could have written it.
    """
    prepare_mindspore()
    path = Path(path)
    if str(path).startswith(pretrained.PREFIX):
        path = pretrained.run_of(str(path))
    check_trusted(path, trust)
    if not (path / PLAN_FILE).is_file():
        raise MsrlError(f"{path} is not a run directory; expected one that `msrl train` wrote")
    return Run(path, checkpoint=str(checkpoint))


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run and its directory.

    Attributes:
        path: of the run directory.
        stopped: the reason of its end: `threshold`, `steps`, `on_iteration` or `interrupted`; None
            if the run was loaded.
        env_steps: environment steps trained; None if the run was loaded.
        mean_return: of the last 100 episodes, reward units; None if the run was loaded.
        checkpoint: to evaluate, see `load`.
    """

    path: Path
    stopped: str | None = None
    env_steps: int | None = None
    mean_return: float | None = None
    checkpoint: str = "last"

    def __fspath__(self) -> str:
        """The directory, so that a run stands where its path may."""
        return str(self.path)

    @property
    def plan(self) -> Plan:
        """The plan: how the run was distributed, and its configuration (`plan.config`)."""
        return load_plan(self.path)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: one an iteration, in very long runs one a second.

        A policy that comes with the package has none.
        """
        return self._lines(METRICS_FILE)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of evaluations.jsonl; none without `eval_every`."""
        return self._lines(EVALUATIONS_FILE)

    def _lines(self, file: str) -> list[dict[str, Any]]:
        path = self.path / file
        return list(read_lines(path)) if path.exists() else []

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int = EVALUATION_SEED,
        sample: bool = False,
        env: str | Callable[..., Any] | None = None,
        config: Mapping[str, object] | Sequence[str] = (),
        video: str | Path | None = None,
        render: bool = False,
    ) -> np.ndarray:
        """Evaluates the policy of the checkpoint, as `msrl eval` does.

        Args:
            episodes: number of episodes.
            seed: of the environments.
            sample: samples actions instead of taking the most likely.
            env: environment to play in, a name or what makes it; None: that of the training.
            config: keys of the algorithm's configuration that differ from training.
            video: file to write of the first episode: .mp4, .gif.
            render: whether to show the episode on the screen; one episode only.

        Returns: `[episodes]` float64, the return of each, reward units.

        Raises:
            MsrlError: the run cannot be evaluated like this.
        """
        from mindspore_rl.trained.evaluate import evaluate  # noqa: PLC0415  (MindSpore)

        name: str | None = by_callable.name_of(env)
        if (self.path / JOB_FILE).is_file():
            earlier = earlier_job(self.path)
            tell_copies(self.path, earlier["algorithm"], name or earlier["config"]["env"])
        given = [f"{k}={v}" for k, v in config.items()] if isinstance(config, Mapping) else config
        film = None if video is None else filming.Film(Path(video))
        if render and (film is not None or episodes != 1):
            raise ConfigError("on the screen one episode is shown, and no video is made of it")
        if film is not None or render:
            name = filming.drawn(name or self.plan.environment, "human" if render else "rgb_array")
        played = (self.path, episodes, seed, sample, name, self.checkpoint)
        returns = evaluate(*played, assignments=given, film=film)
        if film is not None:
            film.save()
        return np.array(returns)

    def plot(
        self, metric: str = "mean_return", over: str = "env_steps", output: str | Path | None = None
    ) -> Any:
        """Draws a learning curve, as `msrl plot` does.

        Args:
            metric: a key of metrics.jsonl, also of `values`.
            over: `env_steps`, `wall_s` or `iteration`.
            output: image file to write, .png, .svg or .pdf.

        Returns: a matplotlib figure, which a notebook shows.

        Raises:
            MsrlError: there is no such metric, or no matplotlib.
        """
        found = curves.curves([self.path], metric, over)
        return curves.draw(found, metric, over, None if output is None else Path(output))

    def export(
        self,
        format: str = "onnx",  # noqa: A002  (the flag's name)
        output: str | Path | None = None,
        batch: int | None = None,
    ) -> Path:
        """Exports the policy of the checkpoint to a file, as `msrl export` does.

        Args:
            format: `onnx` or `mindir`.
            output: the file; None: `policy.onnx` or `policy.mindir` in the run directory.
            batch: observations in one call of the exported function; None: any number with onnx, 1
                with mindir.

        Returns: the file, which has been compared with the policy.

        Raises:
            MsrlError: the policy is no function of the observation and a recurrent state, or
                cannot be exported.
        """
        return exporting.export(self, format, None if output is None else Path(output), batch)[0]

    def make_env(self, render_mode: str | None = None) -> Any:
        """Makes one environment for the policy, to be stepped by hand.

        Its observations are inputs of `policy`, and its actions are outputs of `policy`, whatever
        the spaces of the wrapped environment: flattened, counted and bounded as in training.

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
        """The policy of the checkpoint, a `trained.policy.Policy`.

        Raises:
            MsrlError: there is no usable checkpoint.
        """
        from mindspore_rl.trained.policy import Policy  # noqa: PLC0415  (MindSpore)

        return Policy(self.path, self.checkpoint)
