#!/usr/bin/env python3
"""The paper's scaling experiments: run on available hosts, predicted up to 64 GPUs.

    scripts/reproduce_scaling.py --out docs/scaling          # everything, on this machine
    scripts/reproduce_scaling.py --quick --out /tmp/scaling  # PPO, three policies, 1, 8 and 64 GPUs
    scripts/reproduce_scaling.py --only real --ranks 4  # on more ranks than this machine has cores
    scripts/reproduce_scaling.py --only real --deployment HOSTS.yaml  # on those hosts

MSRL (Zhu et al. 2023, "MSRL: Distributed reinforcement learning with dataflow fragments") reports
up to 2.4 x by choosing the policy and up to 3 x over Ray, on up to 64 GPUs. All numbers written
here are ours. For described clusters, fragments are measured on this machine's processor, their
cells are costed by the description of a GPU (`distribution/devices/`), and each job's plan is
simulated: nothing of that is measured on a GPU, and each row says so. The experiment `real` trains
on as many ranks as this machine has cores, or as the hosts of `--deployment` have, and predicts the
same; it also runs RLlib if scripts/setup_peers.sh installed it.

Rows of DIR/scaling.csv are kept: an interrupted study continues.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import scaling_report
import study
from peers import table, turns
from scaling_study import ALGORITHMS, CLUSTERS, SHARES, Hosts, Study, say
from study import Row

FIXED = "SingleLearnerCoarse"
"""The only strategy of some libraries: workers that act, and one learner."""
WORKLOADS: dict[str, dict[str, Any]] = {
    "as above": {},
    "4 x the environments": {"num_envs": 1024},
    "a quarter of the environments": {"num_envs": 64},
    "a large network": {"hidden": (512, 512)},
    "a dear environment": {"env": "HalfCheetah-v4"},
}
WORKLOAD_GPUS = 8
AGENTS = (2, 4, 8, 16, 32, 64)
AGENTS_CONFIG = {"num_envs": 32, "update_epochs": 1}
PEER_S, PEER_WARM_UP_S = 8.0, 3.0
KEYS = ("experiment", "cluster", "algorithm", "workload", "policy", "gpus")
"""The columns that identify a row."""
COLUMNS = (
    *(*KEYS, "ranks", "iteration_ms", "measured_ms", "steps_per_s", "fixed_steps_s"),
    *("bytes", "binds", *SHARES, "basis", "why_not"),
)
Rows = Iterator[tuple[Row, Callable[[], Row]]]
"""`KEYS` of rows, and functions that compute the rest."""


def _about(*values: Any) -> Row:
    return dict(zip(KEYS, values, strict=True))


def _simulated(
    study: Study,
    experiment: str,
    cluster: str,
    algorithm: str,
    workload: str,
    gpus: int,
    config: Row | None = None,
    policies: tuple[str, ...] = (),
    **figures: float,
) -> Rows:
    """Rows of jobs on a described cluster, one a policy; `figures` replace those of its device."""
    device = dataclasses.replace(study.devices[cluster], **figures)
    for policy in policies or study.policies:
        about = _about(experiment, cluster, algorithm, workload, policy, gpus)
        yield about, partial(study.described, about, config or {}, device)


def real(study: Study, hosts: Hosts) -> Rows:
    """Jobs that fit on the available hosts: predicted, and run."""
    fitting = [1 << i for i in range(hosts.room.bit_length())]
    for algorithm in study.algorithms:
        for ranks in study.ranks or (fitting[-1:] if study.quick else fitting):
            for policy in study.policies:
                about = _about("real", hosts.name, algorithm, "", policy, ranks)
                yield about, partial(study.trained, about, hosts)
    keys = dict(ALGORITHMS["ppo"])
    shape = [keys.pop(key) for key in ("env", "num_envs", "num_steps")]
    task = table.Task("ppo", *shape, keys)
    if hosts.file is None and turns.installed(task.rllib()):
        yield _about("real", hosts.name, "ppo", "", "RLlib", 1), partial(_rllib, task)


def _rllib(task: table.Task) -> Row:
    steps = task.num_envs * task.num_steps
    rate = turns.speed(task.rllib(), steps, PEER_S, PEER_WARM_UP_S)
    return {"ranks": 1, "measured_ms": round(1e3 * steps / rate, 3), "basis": "measured"}


def scaling(study: Study, _: Hosts) -> Rows:
    """Time of an iteration, and of a fixed number of steps, by GPUs."""
    for algorithm in study.algorithms:
        for cluster in CLUSTERS:
            most = sum(host.gpus for host in study.deployments[cluster].hosts)
            for gpus in (n for n in study.gpus if n <= most):
                yield from _simulated(study, "scaling", cluster, algorithm, "", gpus)


def switching(study: Study, _: Hosts) -> Rows:
    """The gain of choosing the policy by workload and by network speed."""
    where = (next(iter(CLUSTERS)), "ppo")
    for workload, config in WORKLOADS.items():
        if not (study.quick and config):
            yield from _simulated(study, "workload", *where, workload, WORKLOAD_GPUS, config)
    for latency_s in (25e-6, 1e-3, 5e-3):
        name, figures = f"{latency_s * 1e3:g} ms between hosts", {"far_latency_s": latency_s}
        yield from _simulated(study, "latency", *where, name, WORKLOAD_GPUS, **figures)


def agents(study: Study, _: Hosts) -> Rows:
    """MAPPO with increasing numbers of agents."""
    where = (next(iter(CLUSTERS)), "mappo")
    for number in () if study.quick else AGENTS:
        config = {**AGENTS_CONFIG, "env": f"graph:simple_spread_v3,N={number}"}
        yield from _simulated(study, "agents", *where, f"{number} agents", WORKLOAD_GPUS, config)


def sensitivity(study: Study, _: Hosts) -> Rows:
    """Change of the answers if a described number is wrong by a factor of two."""
    cluster, gpus = next(iter(CLUSTERS)), study.gpus[-1]
    for policy in ("GPUOnly", "MultipleLearners", "SingleLearnerCoarse"):
        for name, value in dataclasses.asdict(study.devices[cluster]).items():
            for factor in (0.5, 2.0):
                where = (cluster, "ppo", f"{name} x {factor:g}", gpus)
                figures = {name: value * factor}
                yield from _simulated(study, "sensitivity", *where, policies=(policy,), **figures)


EXPERIMENTS = {f.__name__: f for f in (real, scaling, switching, agents, sensitivity)}


def _key(row: Row) -> tuple:
    return tuple(row.get(key, "") for key in KEYS)


def _tell(row: Row) -> None:
    words = {"iteration_ms": "{} ms predicted", "measured_ms": "{} ms measured", "binds": "{}"}
    told = ", ".join(text.format(row[key]) for key, text in words.items() if row.get(key))
    about = filter(None, (str(row[k]) for k in ("algorithm", "policy", "workload", "gpus")))
    print(f"{', '.join(about)} on {row['cluster']}: {row.get('why_not') or told}", flush=True)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("scaling"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="PPO, 3 policies; 1, 8 and 64 GPUs")
    parser.add_argument("--only", choices=EXPERIMENTS, nargs="+", help="(default: all)")
    parser.add_argument(
        "--algorithms",
        choices=ALGORITHMS,
        nargs="+",
        help="algorithms of the experiments `real` and `scaling` (default: all)",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        metavar="N",
        help="ranks of the experiment `real`, also more than cores (default: 1, 2, 4 ... of "
        "those that there is room for)",
    )
    parser.add_argument("--deployment", type=Path, metavar="FILE", help="(default: this machine)")
    parser.add_argument("--hardware", choices=CLUSTERS, help="the GPUs of --deployment")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun, file = time.monotonic(), args.out / "scaling.csv"
    rows = study.read(file) if file.exists() else []
    if rows:
        say(f"{file} has {len(rows)} rows, which stay; remove it to have them found out anew")
    jobs = Study(args.quick, args.ranks, args.algorithms)
    hosts = jobs.hosts(args.deployment, args.hardware)
    done = {_key(row) for row in rows}
    for name in args.only or EXPERIMENTS:
        for about, find_out in EXPERIMENTS[name](jobs, hosts):
            if _key(about) in done:
                continue
            rows.append(about | find_out())
            study.write(rows, file, COLUMNS)
            _tell(rows[-1])
    scaling_report.draw(rows, args.out)
    tables = {name: scaling_report.by_gpus(rows, name, *CLUSTERS) for name in jobs.algorithms}
    tables["mappo, by agents"] = scaling_report.by_agents(rows)
    tables["what choosing gains"] = scaling_report.gains(rows, FIXED)
    for title, lines in tables.items():
        if lines:
            print(f"{title}\n\n{lines}\n")
    print(f"{len(rows)} rows in {file}, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
