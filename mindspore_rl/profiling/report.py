"""`msrl profile RUN`."""

import argparse
from collections import defaultdict

from mindspore_rl.profiling import critical
from mindspore_rl.profiling.timeline import WAITING, Part, Timeline, load
from mindspore_rl.profiling.trace import TRACE_FILE, write_trace
from mindspore_rl.runtime.profile import FOLDER

LEAST_SHARE = 0.002
"""Of an iteration: what takes less is not listed."""


def show(args: argparse.Namespace) -> int:
    """Prints where the time of a run goes; writes its trace."""
    timeline = load(args.run_directory)
    path = args.run_directory / FOLDER / TRACE_FILE
    write_trace(timeline, path)
    print(text(timeline))
    print(f"trace: {path} (opens in Perfetto)")
    return 0


def spent(timeline: Timeline) -> dict[Part, float]:
    """Milliseconds of an iteration, the mean of a fragment's replicas."""
    found: dict[Part, float] = defaultdict(float)
    sizes = {fragment.name: len(fragment.shares) for fragment in timeline.plan.fragments}
    for spans in timeline.spans:
        for span in spans:
            begin, end = max(span.begin, timeline.begin), min(span.end, timeline.end)
            count = sizes[span.part.fragment] * timeline.iterations
            found[span.part] += max(end - begin, 0) / count / 1e6
    return dict(found)


def text(timeline: Timeline) -> str:
    """The profile for people to read."""
    plan, whole = timeline.plan, timeline.iteration_ms
    rate = plan.steps_per_iteration / whole * 1e3
    lines = [
        f"{plan.algorithm['name']} under {plan.policy} on {plan.environment}: "
        f"{timeline.iterations} iterations, {whole:.2f} ms each, {rate:,.0f} steps/s",
        "",
        f"{'':46} {'ms':>8} {'share':>7}   an iteration without it",
    ]
    times = spent(timeline)
    base = critical.length(timeline)
    for fragment in plan.fragments:
        ranks = f"rank {fragment.ranks[0]}"
        if len(fragment.ranks) > 1:
            ranks = f"ranks {fragment.ranks[0]} to {fragment.ranks[-1]}"
        lines.append(f"{fragment.name} ({ranks})")
        own = [part for part in times if part.fragment == fragment.name]
        small = 0.0
        for part in sorted(own, key=lambda part: -times[part]):
            if times[part] < LEAST_SHARE * whole:
                small += times[part]
                continue
            line = f"  {part.what:44.44} {times[part]:8.2f} {times[part] / whole:7.1%}"
            if part.kind != WAITING:
                without = critical.length(timeline, part) / base
                line += f"   {whole * without:8.2f} ms  {1 / max(without, 1e-3):.2f} x as fast"
            lines.append(line)
        if small:
            lines.append(f"  {'all else':44} {small:8.2f} {small / whole:7.1%}")
    lines += ["", "the critical path, on which each waits for the one before:"]
    path = critical.critical_path(timeline)
    total = sum(path.values())
    for part in sorted(path, key=lambda part: -path[part]):
        if path[part] >= LEAST_SHARE * total:
            lines.append(
                f"  {part!s:44.44} {path[part] / total * whole:8.2f} {path[part] / total:7.1%}"
            )
    return "\n".join(lines)
