"""`Job`: all options of a job, and the conversion of a job to a request to the compiler.

Each option is declared once, as a field of `Job`. Its flag, its completion, its keyword in
Python, its key in a YAML file and its checks are made from that field.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mindspore_rl import config, programs
from mindspore_rl.compiler.pipeline import JobRequest, environment_for
from mindspore_rl.config import REQUIRED
from mindspore_rl.environments import by_callable
from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.options import algorithm_keys, check, flag, option, options
from mindspore_rl.jobs.run_directory import earlier_job, tell_copies, tell_deployment
from mindspore_rl.plan import deployment
from mindspore_rl.platform.stdio import say
from mindspore_rl.platform.user_modules import split_environment
from mindspore_rl.platform.yaml_files import YamlKeys, read_yaml
from mindspore_rl.policy import DistributionPolicy, Schedule

AUTO = "auto"
"""The policy that `jobs/auto_policy.py` replaces by the fastest."""
NO_FILE = "none"
"""The `config` that stands for no file, and for none of the project's."""
PathName = str | os.PathLike[str]
SCHEDULE_KEYS = tuple(config.keys_of(Schedule))
GROUPS = ALGORITHM, PLACE, TRAINING = "algorithm", "place", "training"
"""Groups of options: `msrl check` takes the first, `msrl graph` two, `msrl train` all three."""
of_algorithm, of_place, of_training = (functools.partial(option, group) for group in GROUPS)


@dataclasses.dataclass(frozen=True)
class Job:
    """The options of a job. None: the value comes from an earlier run, a file, or a default."""

    algorithm: PathName | None = of_algorithm(
        None,
        lambda: f"{', '.join(registry.algorithms())}, or a .py file; a --config may name it",
        nargs="?",
        in_file=True,
        words=lambda _: registry.algorithms(),
    )
    _: dataclasses.KW_ONLY
    assignments: tuple[str, ...] = of_algorithm(
        (),
        "keys of the algorithm's configuration, see below",
        "KEY=VALUE",
        nargs="*",
        words=lambda line: [f"{key}=" for key in algorithm_keys(line.algorithm or "ppo")],
    )
    config: PathName | Mapping[str, object] | None = of_algorithm(
        None,
        lambda: (
            f"YAML file of keys, env among them; also of {', '.join(file_keys())}; none: not even "
            "the project's values of the task"
        ),
        "FILE",
        otherwise="what the project has for the algorithm and --env, which is told",
    )
    env: str | Callable[..., Any] | None = of_algorithm(None, "environment, see `msrl envs list`")
    num_envs: int | str | None = of_algorithm(None, "environments, on all workers together")
    seed: int | str | None = of_algorithm(None, "seed of every random number")
    total_steps: int | str | None = of_algorithm(
        None, "environment steps, all environments together"
    )
    policy: PathName | None = of_place(
        None,
        lambda: (
            f"{', '.join(registry.policies())}, a .py file, or auto: the one that would be the "
            "fastest here, see `msrl predict`"
        ),
        otherwise="SingleLearnerCoarse",
        in_file=True,
        words=lambda _: ["auto", *registry.policies()],
    )
    schedule: str | Mapping[str, object] | None = of_place(
        None,
        "overrides the policy's schedule, for example order=asynchronous,staleness=4; keys: "
        + ", ".join(SCHEDULE_KEYS),
        "KEY=VALUE,...",
        in_file=True,
    )
    workers: int | None = of_place(
        None,
        "replicas of each fragment with replicas=WORKERS in the policy",
        "N",
        ge=1,
        otherwise=1,
        in_file=True,
    )
    deployment: PathName | None = of_place(
        None,
        "YAML file of hosts, policy and workers, see docs/cluster.md, or the name of one of "
        "distribution/deployments",
        "FILE",
        otherwise="this machine",
    )
    device: str = of_place(
        "auto",
        "where cells run; auto: the GPU if one answers, else the CPU",
        choices=("auto", "cpu", "gpu"),
    )
    cells: str | None = of_place(
        None,
        "compiled cells on the CPU run as native code made from MindSpore's graph of them, or in "
        "MindSpore; auto: native if there is a C++ compiler",
        choices=("auto", "native", "mindspore"),
        otherwise="auto",
    )
    run_dir: PathName | None = of_training(
        None, "run directory", "DIR", otherwise="runs/ALGORITHM-ENV-POLICY-TIME"
    )
    resume: PathName | None = of_training(
        None, "continue from a run's newest checkpoint; no algorithm is named", "RUN"
    )
    trust: bool = of_training(
        False, "use a run directory, whose code is run, even if others own it or can write it"
    )
    backend: str = of_training(
        "mpi",
        "mpi: a process for each worker; inproc: all of them as threads of this process, "
        "uncompiled, for a debugger",
        choices=("mpi", "inproc"),
    )
    stop_return: float | None = of_training(
        None,
        "stop when the mean return of the last 100 episodes (with --eval-every: of an evaluation) "
        "reaches R",
        "R",
        otherwise="the environment's threshold",
        nan="never",
    )
    eval_every: int | None = of_training(
        None,
        "evaluate the policy, without exploration, every N environment steps, in a process of its "
        "own, see docs/metrics.md",
        "N",
        ge=1,
        otherwise="never",
    )
    eval_episodes: int = of_training(10, "episodes of each of these evaluations", "N", ge=1)
    checkpoint_every: float = of_training(60.0, "time between checkpoints", "SECONDS", ge=0)
    checkpoint_replay: bool = of_training(
        True,
        "false: checkpoints leave the kept replay out, and a resumed run begins with an empty one",
        "true|false",
    )
    replay_dir: PathName = of_training(
        "",
        "keep off-policy records in files of this folder, mapped into memory: as many as the disk "
        "holds",
        "DIR",
        otherwise="in memory",
    )
    profile: int = of_training(
        0,
        "record what every rank does in N iterations after the first ones, for `msrl profile`",
        "N",
        ge=1,
        const=20,
    )
    timeout: float = of_training(
        60.0, "longest wait for a message or a cell after the first iteration", "SECONDS", gt=0
    )
    start_timeout: float | None = of_training(
        None,
        "the same for start and compilation",
        "SECONDS",
        gt=0,
        otherwise="300, and more where ranks share cores; 1800 on GPUs, where the driver may have "
        "to compile MindSpore's kernels once",
    )
    max_restarts: int = of_training(
        0,
        "after a failure that is not a user's mistake (a lost worker), continue from the last "
        "checkpoint, at most N times; waits grow if no new one was written",
        "N",
        ge=0,
    )
    dump_graph: PathName | None = of_training(None, "write the program after each pass", "DIR")
    wandb: str = of_training(
        "", "also report the run to Weights & Biases", "PROJECT", const="mindspore_rl"
    )
    quiet: bool = of_training(False, "show no progress")

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", by_callable.name_of(self.env))
        if self.config == NO_FILE:
            object.__setattr__(self, "config", YamlKeys(Path(NO_FILE), {}))
        check(self)
        if self.eval_every is None and self.eval_episodes != type(self).eval_episodes:
            raise ConfigError(
                f"--eval-episodes {self.eval_episodes} without --eval-every, and so no evaluation; "
                "give both, for example `--eval-every 50000`"
            )

    @property
    def written(self) -> YamlKeys | None:
        """Returns the algorithm's keys in the YAML file, or None if it has not been read."""
        return self.config if isinstance(self.config, YamlKeys) else None

    @classmethod
    def of(cls, arguments: Any) -> "Job":
        """Makes a job from parsed arguments."""
        return cls(**{n: value for n, value in vars(arguments).items() if n in options(cls)})


def with_file(job: Job) -> Job:
    """Adds the keys of a job's YAML file, which is read once.

    The job's own keys apply where no flag is given; the algorithm's keys stay in `config`. Without
    a file, these are the values that the project has for the task, if any.
    """
    if isinstance(job.config, Mapping):
        return job
    if job.config is None:
        return _with_tuned(job)
    path = registry.find_config(str(job.config))
    keys, given = read_yaml(path), dict[str, Any]()
    for name in file_keys(type(job)):
        value = keys.pop(name, None)
        if value is None or value == "":
            continue
        if name == "schedule":
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{path}: schedule is {value!r}, expected a mapping, for example "
                    "`schedule: {order: asynchronous, staleness: 4}`"
                )
            words = (*schedule_words(value), *schedule_words(job.schedule))
            given[name] = ",".join({word.partition("=")[0]: word for word in words}.values())
        elif getattr(job, name) is None:
            given[name] = options(type(job))[name].read(path, value)
    return dataclasses.replace(job, config=keys, **given)


def _with_tuned(job: Job) -> Job:
    """Adds the project's values for the job's algorithm and environment, and tells so."""
    assigned = dict(word.partition("=")[::2] for word in job.assignments)
    env = assigned.get("env", job.env)
    if job.resume is not None or not isinstance(env, str):
        return job
    found = registry.tuned(str(job.algorithm or ""), env)
    if found is None:
        return job
    text = f"tuned for {env}: {found.file}, taken; --config {NO_FILE} does without"
    say(text)
    return dataclasses.replace(job, config=found)


def file_keys(job: type[Job] = Job) -> list[str]:
    """Lists the keys of a YAML file that belong to the job; all others are the algorithm's."""
    return [name for name, one in options(job).items() if one.in_file]


def request(job: Job, values: Mapping[str, object] | None = None, **more: Any) -> Any:
    """Converts a job to a request; starts and writes nothing.

    Args:
        job: the job as the user gave it.
        values: keys of the algorithm's configuration; they take precedence over the job's.
        more: fields of `pipeline.JobRequest`; `resume_run` is the directory of the run to resume.

    Returns: a `pipeline.JobRequest`.

    Raises:
        MsrlError: the job is invalid.
    """
    resumed = more.pop("resume_run", None)
    earlier = earlier_job(resumed)
    job = with_file(job)
    place = job.deployment or earlier.get("deployment")
    place_file = registry.find_deployment(str(place)) if place else None
    hosts = deployment.load(place_file) if place_file else deployment.Deployment()
    named = job.policy
    if job.deployment:  # a deployment that is given now takes precedence over an earlier run's
        named = named or hosts.policy
        earlier = {**earlier, **({"workers": hosts.workers} if hosts.workers else {})}
    policy_file, policy = _policy(job, named, earlier)
    algorithm = _algorithm(job, earlier)
    cls: Any = programs.trainer_class(algorithm)
    keys = set(config.keys_of(cls.Config))
    flags, values = _own_keys(job, values or {})
    for word in job.assignments:
        key, _, value = (part.strip() for part in word.partition("="))
        if key in flags and flags[key] != value:
            say(f"{key}={value} is taken, and not --{key.replace('_', '-')} {flags[key]}")
    if job.written:
        _refuse_flags(job, str(job.written.file), set(job.written) - keys)
    _refuse_flags(job, "config", set(values) - keys)
    before = earlier.get("config")
    asked = (job.written, flags, job.assignments, file_keys(type(job)), before, values)
    try:
        settings = config.resolve(cls.Config, *asked)
    except ConfigError as error:
        if not job.written or job.written.file.parent.name != registry.TUNED:
            raise
        text = f"{error} (with the values tuned for this task: --config {NO_FILE} does without)"
        raise ConfigError(text) from error
    name = environment_for(policy, _absolute(settings.env))
    if name != settings.env:
        settings = dataclasses.replace(settings, env=name)
    if resumed:
        tell_copies(resumed, str(algorithm), str(policy_file), settings.env, str(place_file or ""))
        if place_file and not job.deployment:
            tell_deployment(resumed, place_file)
    return JobRequest(
        algorithm,
        policy,
        settings,
        workers=job.workers or earlier.get("workers", _otherwise("workers")),
        policy_file=str(policy_file),
        config_file=str(job.written.file) if job.written else "",
        deployment=hosts,
        deployment_file=str(place_file or ""),
        cells=job.cells or earlier.get("cells", _otherwise("cells")),
        compiled=job.backend == "mpi",
        timeout_s=job.timeout,
        checkpoint_replay=job.checkpoint_replay,
        replay_dir=os.path.abspath(job.replay_dir) if job.replay_dir else "",
        profile=job.profile,
        **more,
    )


def _otherwise(name: str) -> Any:
    """Returns the value of an option that is not given."""
    return options(Job)[name].otherwise


def _own_keys(
    job: Job, values: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Returns the algorithm's keys that a job gives, as texts (flags) and as values."""
    own = {name: getattr(job, name) for name in options(type(job)) if name in REQUIRED}
    flags: dict[str, object] = {k: value for k, value in own.items() if isinstance(value, str)}
    python = {name: value for name, value in own.items() if not isinstance(value, str | None)}
    if isinstance(job.config, Mapping) and job.config is not job.written:
        python = {**job.config, **python}
    return flags, {**python, **values}


def _refuse_flags(job: Job, origin: str, unknown: set[str]) -> None:
    """Tells where to give an option of the job that was given as a key of the algorithm."""
    for key in sorted(unknown & set(options(type(job)))):
        raise ConfigError(
            f"{origin}: {key} is no key of a configuration; give it as {flag(key)}, "
            f"from Python as {key}="
        )


def _algorithm(job: Job, earlier: Mapping[str, Any]) -> Path:
    """Returns the algorithm's file."""
    name = str(job.algorithm or earlier.get("algorithm") or "")
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
    return file


def _policy(
    job: Job, named: PathName | None, earlier: Mapping[str, Any]
) -> tuple[Path, DistributionPolicy]:
    """Returns the policy that is named, or the earlier run's, and its file."""
    file = registry.find_policy(str(named or earlier.get("policy", _otherwise("policy"))))
    policy = registry.load_policy(file)
    before = earlier.get("schedule", {}) if named is None else {}
    return file, dataclasses.replace(policy, schedule=scheduled(job, policy, before))


def scheduled(
    job: Job, policy: DistributionPolicy, earlier: Mapping[str, object] | None = None
) -> Schedule:
    """Returns a policy's schedule, with an earlier run's keys and the job's in place of its own."""
    given = config.to_dict(policy.schedule) | dict(earlier or {})
    return config.resolve(Schedule, None, {}, schedule_words(job.schedule), base=given)


def schedule_words(schedule: str | Mapping[str, object] | None) -> list[str]:
    """Returns the keys of a schedule, as `key=value`; a word alone is the order.

    Raises:
        ConfigError: a key is given twice.
    """
    if isinstance(schedule, Mapping):
        return [f"{key}={value}" for key, value in schedule.items()]
    words = [word.strip() for word in (schedule or "").split(",")]
    found = [word if "=" in word else f"order={word}" for word in words if word]
    keys = [word.partition("=")[0] for word in found]
    if twice := [word for word, key in zip(found, keys, strict=True) if keys.count(key) > 1]:
        raise ConfigError(f"schedule: {' and '.join(twice)}, expected each key once; leave one out")
    return found


def _absolute(environment: str) -> str:
    """Makes the path of an environment's file absolute, so that the run works from any folder."""
    found = split_environment(environment)
    return environment if found is None else f"{found[0].resolve()}:{found[1]}"
