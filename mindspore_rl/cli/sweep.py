"""`msrl sweep`: searches for good values of an algorithm's configuration with Optuna.

Every trial is an ordinary run, in its own folder next to the study. A trial ends early if its
returns are below the median of the earlier trials at the same point.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from mindspore_rl import programs
from mindspore_rl.config import checked, keys_of
from mindspore_rl.errors import ConfigError, JobFailure, MissingPackageError, MsrlError, install
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry, training
from mindspore_rl.jobs.job import Job, with_file
from mindspore_rl.jobs.run_directory import check_place
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.platform.cache import write_file, writing
from mindspore_rl.platform.held_signals import INTERRUPTED_EXIT
from mindspore_rl.platform.stdio import say
from mindspore_rl.platform.yaml_files import read_yaml

STUDY_FILE, BEST_FILE, NAME = "study.db", "best.yaml", "sweep"
POINTS = 20
"""Points of a run at which it is compared with the other runs."""
FIRST_POINT, FIRST_TRIALS = 5, 5
"""The pruner ends no trial before this point, and none before so many trials have finished."""
KEYS = ({"low", "high"}, {"choices"})


def sweep(args: argparse.Namespace) -> int:
    """Runs `msrl sweep`. Returns: the exit code."""
    optuna = _optuna()
    job = with_file(Job.of(args))
    space = read_space(args.space, job)
    with writing(args.study, "--study"):
        args.study.mkdir(0o755, parents=True, exist_ok=True)
    check_place(args.study, args.trust)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=f"sqlite:///{(args.study / STUDY_FILE).resolve()}",
        study_name=NAME,
        load_if_exists=True,
        direction="maximize",
        # Another seed for a study that continues: the same seed would draw the same values again.
        sampler=optuna.samplers.TPESampler(seed=len(list(args.study.glob("trial-*")))),
        pruner=optuna.pruners.MedianPruner(FIRST_TRIALS, FIRST_POINT),
    )
    trials = _Trials(optuna, study, job, space, args.study)
    interrupted = trials.run(args.trials)
    _show(study, space)
    best = trials.best()
    if best is not None:
        print(f"best: {best}; train with it: msrl train --config {best}")
    if interrupted:
        return INTERRUPTED_EXIT
    if trials.done():
        return 0
    say("no trial has come to an end, see above")
    return 1


def read_space(file: Path, job: Job) -> dict[str, dict[str, Any]]:
    """Reads the values to try for each key.

    Args:
        file: YAML, `key: {low: ..., high: ..., log: true, step: ...}` or `key: {choices: [...]}`.
        job: its algorithm has these keys.

    Raises:
        ConfigError: the file or a key is invalid.
    """
    algorithm: Any = programs.trainer_class(registry.find_algorithm(str(job.algorithm)))
    known = keys_of(algorithm.Config)
    found: dict[str, Any] = read_yaml(file)
    if not found:
        raise ConfigError(
            f"{file} names no key; expected, for example, gamma: {{low: 0.9, high: 1}}"
        )
    for key, given in found.items():
        here = f"{file}: {key}"
        if key not in known:
            raise ConfigError(f"{here} is no key of {job.algorithm}; those are {', '.join(known)}")
        if not isinstance(given, dict) or not any(part <= set(given) for part in KEYS):
            raise ConfigError(f"{here} is {given!r}, expected low and high, or choices")
        if extra := set(given) - {"low", "high", "log", "step", "choices"}:
            raise ConfigError(
                f"{here} has {', '.join(sorted(extra))}, expected low, high, log, step"
            )
        if "choices" in given:
            if not isinstance(given["choices"], list) or not given["choices"]:
                raise ConfigError(f"{here}: choices is {given['choices']!r}, expected a list")
            for value in given["choices"]:
                checked(key, value, known, str(file), f"{key}: ")
            continue
        low, high = given["low"], given["high"]
        numbers = [type(value) in (int, float) for value in (low, high)]
        if not all(numbers) or not low < high or (given.get("log") and low <= 0):
            raise ConfigError(
                f"{here} is from {low!r} to {high!r}, expected two numbers, the lower one first"
                + (", above 0 for log" if given.get("log") else "")
            )
        for value in (low, high):
            checked(key, value, known, str(file), f"{key}: ")
    return found


class _Trials:
    """The runs of a study.

    Args:
        job: the job of every trial.
        space: the result of `read_space`.
        folder: the folder of the study and its runs.
    """

    def __init__(
        self, optuna: Any, study: Any, job: Job, space: dict[str, dict[str, Any]], folder: Path
    ) -> None:
        self._optuna, self._study = optuna, study
        self._job, self._space, self._folder = job, space, folder
        request = jobs.request(job, _middle(space))
        self._each = math.ceil(request.config.total_steps / POINTS)
        self._check_study(registry.name_of(request.algorithm), request.config)

    def _check_study(self, algorithm: str, config: Any) -> None:
        """Refuses a study of other jobs: their results do not apply to this one."""
        now = {"algorithm": algorithm, "env": config.env, "total_steps": config.total_steps}
        for key, then in self._study.user_attrs.items():
            if then != now[key]:
                raise ConfigError(
                    f"{self._folder} is a study with {key} {then}, and {now[key]} is asked for; "
                    "undo that, or choose another --study"
                )
        for key, value in now.items():
            self._study.set_user_attr(key, value)

    def done(self) -> list[Any]:
        """Returns the trials that have finished, including those that ended early."""
        state = self._optuna.trial.TrialState
        return self._study.get_trials(states=(state.COMPLETE, state.PRUNED))

    def run(self, trials: int) -> bool:
        """Runs trials until the study has so many. Returns: whether the user interrupted it."""
        state = self._optuna.trial.TrialState
        for _ in range(trials - len(self.done())):
            trial = self._study.ask()
            path = self._folder / f"trial-{trial.number:03d}"
            values = {key: _suggested(trial, key, given) for key, given in self._space.items()}
            try:
                value, pruned, interrupted = self._one(trial, path, values)
            except (MsrlError, JobFailure) as error:
                print(f"trial {trial.number}: {_said(values)}: {str(error).splitlines()[0]}")
                self._study.tell(trial, state=state.FAIL)
                continue
            if interrupted:
                self._study.tell(trial, state=state.FAIL)
                return True
            trial.set_user_attr("run", str(path))
            if pruned or value is None:
                self._study.tell(trial, state=state.PRUNED)
            else:
                self._study.tell(trial, value)
            how = "ended early" if pruned else f"mean return {_short(value)}"
            print(f"trial {trial.number}: {_said(values)}: {how}", flush=True)
        return False

    def _one(
        self, trial: Any, path: Path, values: dict[str, Any]
    ) -> tuple[float | None, bool, bool]:
        """Runs a trial. Returns: its mean return, whether it was pruned, and interrupted."""
        point, pruned = 0, False

        def compare(line: dict[str, Any]) -> bool:
            nonlocal point, pruned
            reached = line["env_steps"] // self._each
            if reached > point and line["mean_return"] is not None:
                point = reached
                trial.report(line["mean_return"], point)
                pruned = trial.should_prune()
            return not pruned

        job = replace(self._job, run_dir=str(path), quiet=True)
        outcome = training.train(job, values, compare).outcome
        return outcome.mean_return, pruned, outcome.stopped == "interrupted"

    def best(self) -> Path | None:
        """Writes the configuration of the best trial. Returns: the file; None without trials."""
        done = self._study.get_trials(states=(self._optuna.trial.TrialState.COMPLETE,))
        if not done:
            return None
        run = Path(max(done, key=lambda trial: trial.value).user_attrs["run"])
        plan = load_plan(run)
        config = {k: list(v) if isinstance(v, tuple) else v for k, v in plan.config.items()}
        about = {"algorithm": plan.algorithm["name"], "policy": plan.policy}
        path = self._folder / BEST_FILE
        write_file(path, yaml.safe_dump({**about, "workers": plan.workers, **config}), "--study")
        return path


def _middle(space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {k: g["choices"][0] if "choices" in g else g["low"] for k, g in space.items()}


def _suggested(trial: Any, key: str, given: dict[str, Any]) -> Any:
    if "choices" in given:
        return _value(given, trial.suggest_int(key, 0, len(given["choices"]) - 1))
    whole = type(given["low"]) is type(given["high"]) is int
    suggest = trial.suggest_int if whole else trial.suggest_float
    more = {name: given[name] for name in ("log", "step") if name in given}
    return suggest(key, given["low"], given["high"], **more)


def _value(given: dict[str, Any], drawn: Any) -> Any:
    """Converts a drawn number: an index into choices becomes the choice, others stay."""
    if drawn is None or "choices" not in given:
        return drawn
    return given["choices"][drawn]


def _said(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show(study: Any, space: dict[str, dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("trial", *space, "mean return"):
        table.add_column(name, justify="right")
    found = sorted(study.get_trials(), key=lambda t: -math.inf if t.value is None else -t.value)
    for trial in found:
        early = trial.state.name == "PRUNED"
        value = "failed" if trial.value is None else f"{trial.value:.1f}{' (ended early)' * early}"
        values = [_value(given, trial.params.get(key)) for key, given in space.items()]
        table.add_row(str(trial.number), *map(_short, values), value)
    Console().print(table)


def _optuna() -> Any:
    try:
        import optuna  # noqa: PLC0415  (optional)
    except ImportError as error:
        text = f"msrl sweep needs Optuna, which is not installed; {install('sweep')}"
        raise MissingPackageError(text, "sweep") from error
    return optuna
