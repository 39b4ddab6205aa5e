"""A timeline in the Chrome trace event format, which Perfetto opens: ranks as tracks."""

import json
from pathlib import Path
from typing import Any

from mindspore_rl.performance.timeline import COMMUNICATION, Timeline
from mindspore_rl.platform.cache import write_file

TRACE_FILE = "trace.json"


def write_trace(timeline: Timeline, path: Path) -> None:
    """Writes the trace, with an arrow from each message's sender to its receiver."""
    events: list[dict[str, Any]] = []
    plan = timeline.plan
    hosts = list(dict.fromkeys(plan.hosts)) or ["this host"]
    for number, host in enumerate(hosts):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": host}})
    places = [hosts.index(plan.hosts[r]) if plan.hosts else 0 for r in range(plan.num_ranks)]
    for rank, spans in enumerate(timeline.spans):
        where = {"pid": places[rank], "tid": rank}
        name = {"name": plan.rank_name(rank)}
        events.append({"ph": "M", "name": "thread_name", **where, "args": name})
        for span in spans:
            begin, took = _us(timeline, span.begin), (span.end - span.begin) / 1e3
            kind = {"cat": span.part.kind, "name": span.part.what}
            if took:
                events.append({"ph": "X", **kind, "ts": begin, "dur": took, **where})
            if span.part.kind != COMMUNICATION:
                continue
            for source, place in span.causes:
                flow = {"cat": "flow", "name": span.part.what, "id": len(events)}
                sent = _us(timeline, timeline.spans[source][place].end)
                origin = {"ts": sent, "pid": places[source], "tid": source}
                events.append({"ph": "s", **flow, **origin})
                events.append({"ph": "f", "bp": "e", **flow, "ts": max(begin, sent), **where})
    write_file(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _us(timeline: Timeline, time_ns: int) -> float:
    return (time_ns - timeline.begin) / 1e3
