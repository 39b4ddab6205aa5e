"""The flags of a job and of its training, see `jobs.Job`."""

import argparse
from typing import get_args

from mindspore_rl import config
from mindspore_rl.cli.parser import Number
from mindspore_rl.config import Range
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import CHOICES, Job
from mindspore_rl.policy import Schedule

KEYS = config.keys_of(Job)


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds what a job is: algorithm, configuration, policy, place."""
    add_configuration(parser)
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        help=f"{', '.join(registry.policies())}, a .py file, or auto: the one that would be the "
        "fastest here, see `msrl plan` (default: SingleLearnerCoarse)",
    )
    parser.add_argument(
        "--schedule",
        metavar="KEY=VALUE,...",
        help="overrides the policy's schedule, for example order=arrival,staleness=4; keys: "
        f"{', '.join(config.to_dict(Schedule()))}",
    )
    parser.add_argument(
        "--workers",
        type=_number("workers"),
        metavar="N",
        help="replicas of each fragment that says WORKERS in the policy (default: 1)",
    )
    parser.add_argument(
        "--deployment",
        metavar="FILE",
        help="YAML file of hosts, policy and workers, see docs/cluster.md, or the name of one of "
        "distribution/deployments (default: this machine)",
    )
    parser.add_argument(
        "--device",
        choices=CHOICES["device"],
        default=Job.device,
        help="where cells run; auto: the GPU if one answers, else the CPU (default: auto)",
    )
    parser.add_argument(
        "--cells",
        choices=CHOICES["cells"],
        help="who runs compiled cells on the CPU: native code made from MindSpore's graph of them, "
        "or MindSpore; auto: native where there is a C++ compiler (default: auto)",
    )


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Adds the algorithm and its configuration."""
    parser.add_argument(
        "algorithm",
        nargs="?",
        help=f"{', '.join(registry.algorithms())}, or a .py file (may be left out with --resume)",
    )
    parser.add_argument(
        "assignments",
        nargs="*",
        metavar="KEY=VALUE",
        help="keys of the algorithm's configuration, see below",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file of keys, env among them; also of algorithm, policy, schedule, workers",
    )
    parser.add_argument("--env", help="environment, see `msrl envs list`")
    parser.add_argument("--num-envs", help="environments, all workers together")
    parser.add_argument("--seed", help="seed of every random number")
    parser.add_argument("--total-steps", help="environment steps, all environments together")


def add_training(train: argparse.ArgumentParser) -> None:
    """Adds that, and how it is run."""
    add_job(train)
    train.add_argument(
        "--run-dir",
        metavar="DIR",
        help="where everything is written (default: runs/ALGORITHM-ENV-POLICY-TIME)",
    )
    train.add_argument("--resume", metavar="RUN", help="continue from a run's newest checkpoint")
    add_trust(train)
    train.add_argument(
        "--backend",
        choices=CHOICES["backend"],
        default=Job.backend,
        help="mpi: a process for each worker; inproc: all of them as threads of "
        "this process, uncompiled, for a debugger (default: mpi)",
    )
    train.add_argument(
        "--stop-return",
        type=float,
        metavar="R",
        help="stop when the mean return of the last 100 episodes reaches R "
        "(default: the environment's threshold; nan: never)",
    )
    train.add_argument(
        "--checkpoint-every",
        type=_number("checkpoint_every"),
        default=Job.checkpoint_every,
        metavar="SECONDS",
        help="time between checkpoints (default: 60)",
    )
    train.add_argument(
        "--replay-dir",
        default="",
        metavar="DIR",
        help="keep off-policy records in files of this folder, mapped into memory: as many as the "
        "disk holds (default: in memory)",
    )
    train.add_argument(
        "--profile",
        type=Number(int, Range(1)),
        nargs="?",
        const=20,
        default=0,
        metavar="N",
        help="write down what every rank does in N iterations after the first ones, for "
        "`msrl profile` (N left out: 20)",
    )
    _add_failures(train)
    train.add_argument("--dump-graph", metavar="DIR", help="write the program after each pass")
    train.add_argument(
        "--wandb",
        nargs="?",
        const="mindspore_rl",
        default=Job.wandb,
        metavar="PROJECT",
        help="tell Weights & Biases of the run, too (PROJECT left out: mindspore_rl)",
    )
    train.add_argument("--quiet", action="store_true", help="no progress")


def _add_failures(train: argparse.ArgumentParser) -> None:
    """Adds when a job has failed, and what then."""
    train.add_argument(
        "--timeout",
        type=_number("timeout"),
        default=Job.timeout,
        metavar="SECONDS",
        help="longest wait for a message or a cell after the first iteration (default: 60)",
    )
    train.add_argument(
        "--start-timeout",
        type=_number("start_timeout"),
        metavar="SECONDS",
        help="the same for start and compilation (default: 300, and more where ranks "
        "share cores; 1800 on GPUs, where the driver may have to compile MindSpore's kernels once)",
    )
    train.add_argument(
        "--max-restarts",
        type=_number("max_restarts"),
        default=Job.max_restarts,
        metavar="N",
        help="after a failure that is no mistake of yours (a lost worker), continue from the "
        "last checkpoint at most N times, ever later if no new one was written (default: 0)",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds --trust."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="use a run's directory, in which all is run, even if others own it or can write it",
    )


def _number(key: str) -> Number:
    """The type of a number that a job may be asked for."""
    kind = KEYS[key].kind
    return Number(kind if isinstance(kind, type) else get_args(kind)[0], KEYS[key].range)
