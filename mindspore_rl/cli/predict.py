"""`msrl plan` and `msrl calibrate`: what a job would take, and what things cost here."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mindspore_rl.cli.job_flags import add_job
from mindspore_rl.environments import registry as by_name
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import Job
from mindspore_rl.platform.cache import in_cache

AUTO = "auto"
WIDTH = 160
"""Of tables that do not go to a terminal."""
HEAD = ("policy", "workers", "ms", "steps/s", "bytes sent", "what binds, or why it cannot serve")


def add(subparsers: Any, command: Any, argv: list[str]) -> None:
    """Adds the sub-commands."""
    text = "predict what a job would take under every policy, and say which suits it"
    planned = command(subparsers, "plan", plan, text, argv)
    add_job(planned)
    planned.add_argument(
        "--hardware",
        metavar="FILE",
        help="YAML file that describes the GPUs and the network of the deployment, or the name of "
        "one of distribution/devices, see docs/scaling.md (default: this machine's processor)",
    )
    text = "measure what messages cost here, and what the parts of a job do if one is named"
    add_job(command(subparsers, "calibrate", calibrate, text, argv))


def plan(args: argparse.Namespace) -> int:
    """`msrl plan`."""
    from mindspore_rl.jobs import auto_policy  # noqa: PLC0415

    found = _simulated(Job.of(args), args.hardware)
    _table([auto_policy.row(candidate) for candidate in found])
    print(auto_policy.reason(auto_policy.best(found), found))
    return 0


def settled(job: Job, values: Mapping[str, object] | None = None) -> Job:
    """A job with a policy, its chunks and its number of workers in the place of `auto`.

    Args:
        job: what is asked for.
        values: keys of the algorithm's configuration.
    """
    from mindspore_rl.jobs import auto_policy  # noqa: PLC0415

    if (job.policy or jobs.written_in(job).get("policy")) != AUTO:
        return job
    found = _simulated(replace(job, policy=AUTO), None, values)
    chosen = auto_policy.best(found)
    say(f"policy {auto_policy.reason(chosen, found)}")
    chunks = f"chunks={chosen.policy.schedule.chunks}"
    schedule = ",".join(filter(None, (job.schedule, chunks)))
    return replace(job, policy=chosen.file, workers=chosen.workers, schedule=schedule)


def _simulated(
    job: Job, hardware: str | None, values: Mapping[str, object] | None = None
) -> list[Any]:
    from mindspore_rl.jobs import auto_policy  # noqa: PLC0415
    from mindspore_rl.performance import device_model, predict  # noqa: PLC0415
    from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415

    named = None if job.policy == AUTO else job.policy
    schedule = jobs.schedule_asked(job)  # every candidate's; the request is under any policy
    any_policy = replace(job, policy=named or next(iter(registry.policies())), schedule=None)
    request = jobs.request(any_policy, values)
    by_name.spec(request.config.env)  # else every policy would be told not to serve
    machine = predict.machine_costs(say)
    kind, cluster = "CPU", Cluster(machine)
    if hardware:
        described, sources = device_model.load(registry.find_device(hardware))
        say(f"{hardware} is a description: " + "; ".join(f"{k}: {v}" for k, v in sources.items()))
        kind, cluster = "GPU", Cluster.described(machine, request.deployment, described)
    elif request.deployment.spans_hosts:
        far = predict.link_between(request.deployment, say)
        cluster = Cluster.measured(machine, request.deployment, far)
    files = auto_policy.of_project(named)
    workers = job.workers or jobs.workers_in(jobs.written_in(job), job.config)
    return auto_policy.candidates(request, files, cluster, say, kind, workers, schedule)


def calibrate(args: argparse.Namespace) -> int:
    """`msrl calibrate`."""
    from mindspore_rl.performance import predict  # noqa: PLC0415
    from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415
    from mindspore_rl.plan import deployment  # noqa: PLC0415

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


def say(text: str) -> None:
    """Tells the user what is being done."""
    print(f"msrl: {text}", file=sys.stderr, flush=True)


def _table(rows: list[tuple[str, ...]], head: tuple[str, ...] = HEAD) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i and name != HEAD[-1] else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
