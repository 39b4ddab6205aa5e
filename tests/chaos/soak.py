"""Memory, descriptors and threads of a job that trains for a long time."""

import signal
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cases import ENDLESS
from tests.chaos.jobs import SHARED_MEMORY, Broken, Job, Outcome, Place, read

MEASURES = ("RSS KiB", "anonymous KiB", "descriptors", "threads")
GROWTH_KIB, GROWTH = 4096.0, 0.02
"""Memory counts as flat if it grows by at most this much, or by this fraction, from the second to
the last quarter."""
SAMPLES, SHORTEST_S = 120, 2.0


@dataclass(frozen=True)
class Sample:
    """Measurements of a process at one time: `values` in the order of `MEASURES`."""

    time_s: float
    values: tuple[float, ...]


def sample(pid: int) -> tuple[float, ...] | None:
    """Measures a process; None if it has ended."""
    fields = {}
    for line in (read(f"/proc/{pid}/smaps_rollup") + read(f"/proc/{pid}/status")).splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name, value.split()[:1])
    try:
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        names = ("Rss", "Anonymous", "Threads")
        rss, anonymous, threads = (float(fields[name][0]) for name in names)
    except (OSError, KeyError, IndexError):
        return None
    return rss, anonymous, float(descriptors), threads


def flat(samples: list[Sample], measure: int) -> bool:
    """Returns whether a measure is the same in the second and the last quarter of the time."""
    begin, end = samples[0].time_s, samples[-1].time_s

    def middle(first: float, last: float) -> float:
        found = [
            s.values[measure]
            for s in samples
            if begin + first * (end - begin) <= s.time_s <= begin + last * (end - begin)
        ]
        return statistics.median(found or [samples[-1].values[measure]])

    early, late = middle(0.25, 0.5), middle(0.75, 1.0)
    room = max(GROWTH_KIB, GROWTH * early) if measure < 2 else 0.0
    return late <= early + room


def slope(samples: list[Sample], measure: int) -> float:
    """Returns a measure's growth per hour after the first quarter, by least squares."""
    begin, end = samples[0].time_s, samples[-1].time_s
    late = [s for s in samples if s.time_s >= begin + 0.25 * (end - begin)]
    if len({s.time_s for s in late}) < 2:
        return 0.0
    times = [s.time_s / 3600 for s in late]
    return statistics.linear_regression(times, [s.values[measure] for s in late]).slope


class Soak:
    """A job of two workers that trains without end, and the measurements of its processes.

    Attributes:
        job: runs until `finish`.
    """

    def __init__(self, place: Place, seconds: float) -> None:
        words = [*ENDLESS, "--checkpoint-every", "5", "--timeout", "300"]
        self.job: Job = place.job(words, "soak")
        self._every_s = max(SHORTEST_S, seconds / SAMPLES)
        self._samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        self._shared: list[Sample] = []

    def watch(self, until_s: float) -> None:
        """Measures until a time. Raises: Broken."""
        self.job.train()
        while time.monotonic() < until_s:
            if self.job.process.poll() is not None:
                raise Broken(f"exit code {self.job.process.returncode}: {self.job.err[-500:]}")
            now = time.monotonic()
            for pid, kind in self.job.processes().items():
                if (values := sample(pid)) is not None:
                    self._samples[kind, pid].append(Sample(now, values))
            size = sum(path.stat().st_blocks for path in SHARED_MEMORY.glob("*")) / 2
            self._shared.append(Sample(now, (size,)))
            time.sleep(max(0.0, min(now + self._every_s, until_s) - time.monotonic()))

    def finish(self) -> list[Outcome]:
        """Ends the job by one Ctrl-C. Returns: one row per process. Raises: Broken."""
        self.job.process.send_signal(signal.SIGINT)
        self.job.check(self.job.wait(120.0), 130, said=("interrupted",))
        found = [
            Outcome("soak", "one Ctrl-C", f"exit code 130, iteration {self.job.newest()}", True)
        ]
        for (kind, pid), samples in sorted(self._samples.items()):
            if len(samples) < 8:
                continue  # a helper process of the start
            parts, good = [], True
            for measure, name in enumerate(MEASURES):
                values = [s.values[measure] for s in samples]
                good &= flat(samples, measure)
                text = f"{name} {values[0]:.0f}, {values[-1]:.0f}, {max(values):.0f}"
                if measure < 2:
                    text += f" ({slope(samples, measure):+.0f} an hour)"
                parts.append(text)
            found.append(
                Outcome("soak", f"{kind} {pid}: first, last, most", "; ".join(parts), good)
            )
        sizes = [s.values[0] for s in self._shared] or [0.0]
        text = f"{sizes[0]:.0f}, {sizes[-1]:.0f}, {max(sizes):.0f} KiB"
        good = not self._shared or flat(self._shared, 0)
        return [*found, Outcome("soak", "/dev/shm: first, last, most", text, good)]
