"""The report of `msrl profile RUN`: where the time of an iteration goes."""

import shutil
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from mindspore_rl.performance import critical_path
from mindspore_rl.performance.chrome_trace import TRACE_FILE, write_trace
from mindspore_rl.performance.timeline import WAITING, Part, Timeline, load
from mindspore_rl.plan.plan import Plan
from mindspore_rl.platform.stdio import say
from mindspore_rl.runtime.profile_recorder import FOLDER

MIN_SHARE = 0.002
"""Share of an iteration below which parts are not listed."""
Inside = dict[str, dict[str, float]]
"""Milliseconds of an iteration by fragment and activity, inside compiled cells."""


def show(run_dir: Path) -> None:
    """Prints where the time of a run goes, and writes its trace."""
    timeline = load(run_dir)
    path = run_dir / FOLDER / TRACE_FILE
    write_trace(timeline, path)
    print(text(timeline, _inside(timeline.plan, run_dir)))
    print(f"trace: {path} (opens in Perfetto)")


def spent(timeline: Timeline) -> dict[Part, float]:
    """Sums the milliseconds of an iteration by part, averaged over a fragment's replicas."""
    found: dict[Part, float] = defaultdict(float)
    sizes = {fragment.name: len(fragment.shares) for fragment in timeline.plan.fragments}
    for parts in spent_by_rank(timeline):
        for part, ms in parts.items():
            found[part] += ms / sizes[part.fragment]
    return dict(found)


def spent_by_rank(timeline: Timeline) -> list[dict[Part, float]]:
    """Sums the milliseconds of an iteration by part, for each rank."""
    found: list[dict[Part, float]] = []
    for spans in timeline.spans:
        parts: dict[Part, float] = defaultdict(float)
        for span in spans:
            begin, end = max(span.begin, timeline.begin), min(span.end, timeline.end)
            parts[span.part] += max(end - begin, 0) / timeline.iterations / 1e6
        found.append(dict(parts))
    return found


def _inside(plan: Plan, run_dir: Path) -> Inside:
    """Measures activities inside cells, which no profile shows."""
    hidden = plan.in_graph or (plan.cells != "native" and plan.reductions)
    if not hidden or plan.device != "CPU":
        return {}
    from mindspore_rl.performance import predict  # noqa: PLC0415  (simulation, which others do without)
    from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415
    from mindspore_rl.performance.measure_cells import inside_s  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        shutil.copytree(run_dir, folder, ignore=shutil.ignore_patterns("checkpoints", FOLDER))
        here = replace(plan, hosts=())
        costs = predict.fragment_costs(here, folder, say)
    cluster = Cluster(predict.machine_costs(say))
    return {
        fragment.name: {
            what: 1e3 * seconds
            for what, seconds in inside_s(here, fragment, costs[fragment.name], cluster).items()
        }
        for fragment in plan.fragments
    }


def text(timeline: Timeline, inside: Inside) -> str:
    """Formats the profile as text."""
    plan, whole = timeline.plan, timeline.iteration_ms
    rate = plan.steps_per_iteration / whole * 1e3
    lines = [
        f"{plan.algorithm['name']} under {plan.policy} on {plan.environment}: "
        f"{timeline.iterations} iterations, {whole:.2f} ms each, {rate:,.0f} steps/s",
        "",
        f"{'':46} {'ms':>8} {'share':>7}   an iteration without it",
    ]
    times = spent(timeline)
    base = critical_path.length(timeline)
    for fragment in plan.fragments:
        ranks = f"rank {fragment.ranks[0]}"
        if len(fragment.ranks) > 1:
            ranks = f"ranks {fragment.ranks[0]} to {fragment.ranks[-1]}"
        lines.append(f"{fragment.name} ({ranks})")
        own = [part for part in times if part.fragment == fragment.name]
        small = 0.0
        for part in sorted(own, key=lambda part: -times[part]):
            if times[part] < MIN_SHARE * whole:
                small += times[part]
                continue
            line = f"  {part.what:44.44} {times[part]:8.2f} {times[part] / whole:7.1%}"
            if part.kind != WAITING:
                without = critical_path.length(timeline, part) / base
                line += f"   {whole * without:8.2f} ms  {1 / max(without, 1e-3):.2f} x as fast"
            lines.append(line)
        if small:
            lines.append(f"  {'all else':44} {small:8.2f} {small / whole:7.1%}")
        for what, ms in inside.get(fragment.name, {}).items():
            told = f"of its cells, measured apart: {what}"
            lines.append(f"  {told:44} {ms:8.2f} {ms / whole:7.1%}")
    lines += ["", "the critical path, on which each waits for the one before:"]
    path = critical_path.critical_path(timeline)
    total = sum(path.values())
    for part in sorted(path, key=lambda part: -path[part]):
        if path[part] >= MIN_SHARE * total:
            lines.append(
                f"  {part!s:44.44} {path[part] / total * whole:8.2f} {path[part] / total:7.1%}"
            )
    return "\n".join(lines)
