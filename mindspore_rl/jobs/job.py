"""`Job`: everything a user can ask for, and its translation to a request to the compiler."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspore_rl import config, programs
from mindspore_rl.config import option
from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.run_directory import earlier_job, tell_copies, tell_deployment
from mindspore_rl.platform.user_modules import split_environment
from mindspore_rl.platform.yaml_files import read_yaml
from mindspore_rl.policy import DistributionPolicy, Schedule

JOB_KEYS = ("algorithm", "policy", "schedule", "workers")
"""Keys of a YAML file that are the job's; all others are the algorithm's."""
AUTO = "auto"
"""The policy that `jobs/auto_policy.py` replaces by the fastest."""
CHOICES = {
    "device": ("auto", "cpu", "gpu"),
    "cells": ("auto", "native", "mindspore"),
    "backend": ("mpi", "inproc"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """What is asked for. None: what an earlier run, a file or the algorithm says, or a default."""

    algorithm: str | None = option(None, "name, or a .py file; None: that of the resumed run")
    assignments: tuple[str, ...] = option((), "`key=value`, of the algorithm's configuration")
    policy: str | None = option(None, "name of a distribution policy, or a .py file")
    schedule: str | None = option(None, "`key=value,...`, instead of what the policy says")
    workers: int | None = option(None, "replicas of what the policy replicates", least=1)
    deployment: str | None = option(None, "name or YAML file of a deployment")
    device: str = option("auto", "where cells run: auto, cpu or gpu")
    cells: str | None = option(None, "who runs them on the CPU: auto, native or mindspore")
    config: str | None = option(None, "YAML file of keys, also of JOB_KEYS")
    env: str | None = option(None, "environment")
    num_envs: str | None = option(None, "environments, all workers together")
    seed: str | None = option(None, "seed of every random number")
    total_steps: str | None = option(None, "environment steps, all environments together")
    run_dir: str | None = option(None, "where everything is written")
    resume: str | None = option(None, "directory of a run to go on from")
    trust: bool = option(False, "use directories of runs that other users could write")
    backend: str = option("mpi", "mpi, or inproc: threads of this process, uncompiled")
    stop_return: float | None = option(None, "mean return that ends the run; nan: none does")
    checkpoint_every: float = option(60.0, "seconds between checkpoints", least=0)
    timeout: float = option(60.0, "seconds of the longest wait", above=0)
    replay_dir: str = option("", "folder of files that keep off-policy records")
    profile: int = option(0, "iterations of which every rank writes down what it does", least=0)
    start_timeout: float | None = option(None, "seconds of start and compilation", above=0)
    max_restarts: int = option(0, "restarts after failures", least=0)
    dump_graph: str | None = option(None, "folder for the program after each pass")
    wandb: str = option("", "project of Weights & Biases that is told of the run")
    quiet: bool = option(False, "show no progress")

    def __post_init__(self) -> None:
        for key, choices in CHOICES.items():
            if (value := getattr(self, key)) is not None and value not in choices:
                raise ConfigError(f"{key} is {value!r}, expected one of {', '.join(choices)}")
        for field in dataclasses.fields(self):
            if field.default is None and getattr(self, field.name) == "":
                raise ConfigError(
                    f"--{field.name.replace('_', '-')} is empty (a variable of the shell that has "
                    f"no value?), expected: {field.metadata['help']}; or leave it out"
                )

    @classmethod
    def of(cls, arguments: Any) -> "Job":
        """What a namespace of arguments has of it."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(arguments, name) for name in names if hasattr(arguments, name)})


def request(job: Job, values: Mapping[str, object] | None = None, **more: Any) -> Any:
    """Resolves what is asked for; nothing is started or written.

    Args:
        job: what is asked for.
        values: keys of the algorithm's configuration; they count for more than the job's.
        more: of a `pipeline.JobRequest`; `resume_run`: the directory of the run to be resumed.

    Returns: a `pipeline.JobRequest`.

    Raises:
        MsrlError: no such job can be.
    """
    from mindspore_rl.compiler.pipeline import JobRequest, environment_for  # noqa: PLC0415
    from mindspore_rl.plan import deployment  # noqa: PLC0415

    resumed = more.pop("resume_run", None)
    earlier = earlier_job(resumed)
    yaml_file = registry.find_config(job.config) if job.config else None
    written = written_in(job)
    place = job.deployment or earlier.get("deployment")
    place_file = registry.find_deployment(place) if place else None
    hosts = deployment.load(place_file) if place_file else deployment.Deployment()
    if job.deployment:  # given now, it counts for more than an earlier run
        written = {"policy": hosts.policy, **written}
        earlier = {**earlier, **({"workers": hosts.workers} if hosts.workers else {})}
    policy_file, policy = _policy(job, written, earlier)
    file, assignments = _algorithm(job, written, earlier)
    cls: Any = programs.trainer_class(file)
    keys = config.keys_of(cls.Config)
    _refuse_flags(job.config, set(written) - {*JOB_KEYS, *keys})
    _refuse_flags("config", set(values or {}) - set(keys))
    flags = {key: getattr(job, key) for key in ("env", "num_envs", "seed", "total_steps")}
    settings = config.resolve(
        cls.Config, yaml_file, flags, assignments, JOB_KEYS, earlier.get("config"), values or {}
    )
    name = environment_for(policy, _absolute(settings.env))
    if name != settings.env:
        settings = dataclasses.replace(settings, env=name)
    if resumed:
        tell_copies(resumed, str(file), str(policy_file), settings.env, str(place_file or ""))
        if place_file and not job.deployment:
            tell_deployment(resumed, place_file)
    workers = job.workers or workers_in(written, job.config) or earlier.get("workers", 1)
    return JobRequest(
        file,
        policy,
        settings,
        workers,
        policy_file=str(policy_file),
        deployment=hosts,
        deployment_file=str(place_file or ""),
        cells=job.cells or earlier.get("cells", "auto"),
        **more,
    )


def _refuse_flags(origin: str | None, unknown: set[str]) -> None:
    """Says of words of the job where they are to be given, rather than that they are no keys."""
    for key in sorted(unknown & {field.name for field in dataclasses.fields(Job)}):
        raise ConfigError(
            f"{origin}: {key} is no key of a configuration; give it as --{key.replace('_', '-')}, "
            f"from Python as {key}="
        )


def _algorithm(
    job: Job, written: Mapping[str, Any], earlier: Mapping[str, Any]
) -> tuple[Path, list[str]]:
    """The algorithm's file, and the assignments: without a name, the first word may be one."""
    assignments = list(job.assignments)
    name = job.algorithm
    if name and "=" in name and not Path(name).exists():
        assignments.insert(0, name)
        name = None
    name = str(name or written.get("algorithm") or earlier.get("algorithm") or "")
    if not name:
        raise MsrlError(
            f"which algorithm? one of {', '.join(registry.algorithms())}, or a .py file"
        )
    file = registry.find_algorithm(name)
    before = Path(earlier.get("algorithm", file)).stem
    if before != file.stem:
        raise ConfigError(
            f"the run to be resumed is one of {before}, and {file.stem} is asked for; leave the "
            "algorithm out, or start a new run without --resume"
        )
    return file, assignments


def _policy(
    job: Job, written: dict[str, Any], earlier: dict[str, Any]
) -> tuple[Path, DistributionPolicy]:
    """The policy that the flags, a YAML file or the earlier run name, and its file."""
    named = job.policy or written.get("policy")
    file = registry.find_policy(str(named or earlier.get("policy", "SingleLearnerCoarse")))
    policy = registry.load_policy(file)
    given = config.to_dict(policy.schedule)
    if named is None:
        given |= earlier.get("schedule", {})
    schedule = config.resolve(Schedule, None, {}, schedule_asked(job), base=given)
    return file, dataclasses.replace(policy, schedule=schedule)


def wants_auto(job: Job) -> bool:
    """Whether a policy is to be chosen."""
    return (job.policy or written_in(job).get("policy")) == AUTO


def written_in(job: Job) -> dict[str, Any]:
    """What the YAML file of a job holds."""
    return read_yaml(registry.find_config(job.config)) if job.config else {}


def schedule_asked(job: Job) -> list[str]:
    """The keys of a policy's schedule that a YAML file and the flags give, as `key=value`."""
    return [
        *_schedule_keys(written_in(job).get("schedule", {}), job.config),
        *filter(None, (job.schedule or "").split(",")),
    ]


def workers_in(written: dict[str, Any], file: str | None) -> int | None:
    """How many a YAML file asks for, if it does."""
    value = written.get("workers")
    if value is None:
        return None
    try:
        found = config.parse(value, int)
    except (ValueError, ArithmeticError):
        found = 0
    if found < 1:
        raise ConfigError(f"{file}: workers is {value!r}, expected a whole number, at least 1")
    return found


def _schedule_keys(value: Any, file: str | None) -> list[str]:
    if not isinstance(value, dict):
        raise ConfigError(
            f"{file}: schedule is {value!r}, expected a mapping, for example "
            "`schedule: {order: arrival, staleness: 4}`"
        )
    return [f"{key}={part}" for key, part in value.items()]


def _absolute(environment: str) -> str:
    """A file's environment by its absolute path, so that a run can be used from anywhere."""
    found = split_environment(environment)
    return environment if found is None else f"{found[0].resolve()}:{found[1]}"
