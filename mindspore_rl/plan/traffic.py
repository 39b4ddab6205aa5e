"""Traffic between ranks: predicted from the plan, and counted while a job runs.

A call is one message from one rank to another, or one rank's part in one collective; its bytes are
the payload. Messages are counted where they are handed to the communicator. Collectives run inside
compiled cells: a counter in the graph beside each of them counts its runs, each of which carries
the same bytes.
"""

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from mindspore_rl.plan.edges import edges_by_chunk
from mindspore_rl.plan.plan import Plan
from mindspore_rl.platform.cache import write_file

TRAFFIC_FILE = "communication.json"
CONTROL, CHECKPOINTS = "iteration boundary", "start and checkpoints"
"""Traffic that is not caused by values of the program."""
RECORDS = "records that others drew"
"""Traffic that depends on random draws."""

Counts = dict[str, tuple[int, int]]
"""Calls and bytes by the name of a message or a collective."""


@dataclass(frozen=True)
class Traffic:
    """Calls and bytes of one message or collective, over all ranks.

    Attributes:
        each: whether they occur in each iteration, or once, before the first.
        conditional: whether a condition of the program may reduce them.
        updates: how often they occur in an iteration: in an asynchronous job, the updates of as
            many messages as there are workers.
    """

    name: str
    calls: int
    message_bytes: int
    each: bool = True
    conditional: bool = False
    updates: Fraction = Fraction(1)

    def total(self, iterations: Fraction) -> tuple[int, int]:
        """Returns calls and bytes of a run."""
        times = iterations * self.updates if self.each else 1
        return int(self.calls * times), int(self.message_bytes * times)


def predict(plan: Plan) -> list[Traffic]:
    """Predicts the traffic of every message, then of every collective."""
    found = []
    edges = edges_by_chunk(plan)
    for message in plan.messages:
        times = max(message.times, 1)
        sizes = [
            edge.size(i, j)
            for edge in (by_name[message.name] for by_name in edges[: message.chunks])
            for i, j in edge.pairs
        ]
        total = len(sizes) * times, sum(sizes) * times
        found.append(Traffic(message.name, *total, message.times > 0, message.conditional))
    members = {fragment.name: len(fragment.shares) for fragment in plan.fragments}
    arrivals, updates = plan.arrivals, Fraction(1)
    if arrivals is not None and arrivals.gather:  # replicas of its consumer reduce in each update
        updates = Fraction(members[arrivals.sender], arrivals.gather * arrivals.consumers)
    for reduction in plan.reductions:
        calls = members[reduction.fragment] * max(reduction.times, 1)
        total = calls, calls * reduction.message_bytes
        found.append(
            Traffic(reduction.name, *total, reduction.times > 0, reduction.conditional, updates)
        )
    return found


def describe(traffic: Traffic) -> str:
    """Formats traffic, such as `32 calls, 1,204 bytes`."""
    bound = "at most " if traffic.conditional else ""
    calls, size = traffic.total(Fraction(1))
    plural = "" if calls == 1 else "s"
    return f"{bound}{calls:,} call{plural}, {size:,} bytes"


def iterations_done(plan: Plan, done: dict[int, int]) -> Fraction:
    """Returns a run's iterations: of every rank, or in an asynchronous job the workers' mean."""
    if plan.arrivals is None:
        return Fraction(max(done.values()))
    ranks = next(f.ranks for f in plan.fragments if f.name == plan.arrivals.sender)
    return Fraction(sum(done[rank] for rank in ranks), len(ranks))


def compare(plan: Plan, iterations: Fraction, ranks: list[Counts]) -> dict[str, Any]:
    """Compares the predicted traffic with the traffic that all ranks counted.

    Args:
        plan: of the job.
        iterations: done in this run.
        ranks: the counts of each rank.

    Returns: `{"iterations": n, "program": {name: {...}}, "runtime": {name: {...}}}`, with `calls`
        and `bytes`, and in `program` the `predicted_` ones too.
    """
    counted: Counts = {}
    for counts in ranks:
        for name, (calls, size) in counts.items():
            before = counted.get(name, (0, 0))
            counted[name] = (before[0] + calls, before[1] + size)
    program: dict[str, Any] = {}
    for traffic in predict(plan):
        calls, size = counted.pop(traffic.name, (0, 0))
        expected_calls, expected_bytes = traffic.total(iterations)
        program[traffic.name] = {
            "calls": calls,
            "bytes": size,
            "predicted_calls": expected_calls,
            "predicted_bytes": expected_bytes,
            "conditional": traffic.conditional,
        }
    runtime = {name: {"calls": calls, "bytes": size} for name, (calls, size) in counted.items()}
    number = int(iterations) if iterations.denominator == 1 else float(iterations)
    return {"iterations": number, "program": program, "runtime": runtime}


def write(plan: Plan, run_dir: Path, iterations: Fraction, ranks: list[Counts]) -> None:
    """Writes the comparison into a run directory."""
    text = json.dumps(compare(plan, iterations, ranks), indent=1)
    write_file(run_dir / TRAFFIC_FILE, text + "\n")
