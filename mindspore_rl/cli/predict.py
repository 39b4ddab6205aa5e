"""`msrl predict` and `msrl calibrate`: predict the time of a job; measure its costs here."""

import argparse
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mindspore_rl.cli.job_flags import add_options
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import ALGORITHM, PLACE, Job
from mindspore_rl.plan import deployment
from mindspore_rl.platform.cache import in_cache
from mindspore_rl.platform.stdio import WIDTH, say

HEAD = ("policy", "workers", "ms", "steps/s", "bytes sent", "what binds, or why it cannot serve")


def add(subparsers: Any, command: Any, argv: list[str]) -> None:
    """Adds the subcommands."""
    text = "predict the time of a job under every policy, and name the fastest"
    planned = command(subparsers, "predict", simulate, text, argv, former="plan")
    add_options(planned, ALGORITHM, PLACE)
    planned.add_argument(
        "--hardware",
        metavar="FILE",
        help="YAML file that describes the GPUs and the network of the deployment, or the name of "
        "one of distribution/devices, see docs/scaling.md (default: this machine's processor)",
    )
    text = "measure the costs of messages here, and of the parts of a job if one is named"
    calibrated = command(subparsers, "calibrate", calibrate, text, argv)
    add_options(calibrated, ALGORITHM, PLACE)


def simulate(args: argparse.Namespace) -> int:
    """Runs `msrl predict`."""
    from mindspore_rl.jobs import auto_policy  # noqa: PLC0415

    found = auto_policy.simulated(Job.of(args), args.hardware)
    _table([auto_policy.row(candidate) for candidate in found])
    print(auto_policy.reason(auto_policy.best(found), found))
    return 0


def calibrate(args: argparse.Namespace) -> int:
    """Runs `msrl calibrate`."""
    from mindspore_rl.performance import predict  # noqa: PLC0415
    from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415

    request = jobs.request(Job.of(args)) if args.algorithm else None
    hosts = deployment.load(registry.find_deployment(args.deployment)) if args.deployment else None
    machine = predict.machine_costs(say, anew=True)
    cluster, links = Cluster(machine), {"on a host": machine.near}
    if hosts is not None and hosts.spans_hosts:
        links["between hosts"] = predict.link_between(hosts, say, anew=True)
        cluster = Cluster.measured(machine, hosts, links["between hosts"])
    for where, link in links.items():
        tables = (link.send, link.receive, link.transit, link.reduce)
        rows = [
            (f"{size:,}", *(f"{table.at(size) * 1e6:,.1f}" for table in tables))
            for size in link.send.sizes
        ]
        print(f"messages {where}, us")
        _table(rows, ("bytes", "send", "receive", "on the way", "collective of two"))
    if request is not None:
        _calibrate(request, cluster)
    print(f"kept in {in_cache(predict.MACHINE_FILE)}")
    return 0


def _calibrate(request: Any, cluster: Any) -> None:
    """Measures the parts of a job, with half, all and twice its environments."""
    from mindspore_rl.performance import cost_tables, predict  # noqa: PLC0415
    from mindspore_rl.performance.measure_cells import inside_s  # noqa: PLC0415

    num_envs, rows = request.config.num_envs, list[tuple[str, ...]]()
    measured = predict.by_rows(request, (max(num_envs // 2, 1), num_envs, 2 * num_envs), say)
    for (fragment, what), times in measured.items():
        line = cost_tables.line(*zip(*times, strict=True))
        at = ", ".join(f"{1e3 * seconds:.3f} ({count})" for count, seconds in times)
        told = f"{1e3 * line.overhead_s:.3f}", f"{1e6 * line.row_s:.2f}", f"{line.residual:.0%}"
        rows.append((fragment, what, at, *told))
    job = predict.job_of(request, say)
    ranks = job.plan.num_ranks
    found = job.on(cluster, () if ranks == 1 else request.deployment.place(ranks, "CPU"))
    _table(rows, ("fragment", "", "ms (environments)", "overhead, ms", "each, us", "off by"))
    for part in found.plan.fragments:
        for what, seconds in inside_s(found.plan, part, job.costs[part.name], cluster).items():
            print(f"inside cells of {part.name}: {what} {seconds * 1e3:.2f} ms")
    print(
        f"{request.policy.name}: an iteration takes {found.simulation.iteration_s * 1e3:.2f} "
        f"ms, {found.steps_per_s:,.0f} steps/s"
    )


def _table(rows: list[tuple[str, ...]], head: tuple[str, ...] = HEAD) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i and name != HEAD[-1] else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
