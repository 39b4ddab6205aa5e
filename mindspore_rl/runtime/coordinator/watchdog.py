"""The deadline of every wait: finds the rank that hangs, and who waits for it."""

import time
from collections.abc import Container
from dataclasses import dataclass

from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.stages import Stages
from mindspore_rl.runtime.stamps import Stamp

NAMED_RANKS = 4


@dataclass(frozen=True)
class Stall:
    """A rank that made no progress, its last stamp, and the report."""

    rank: int
    stamp: Stamp
    text: str


class Watchdog:
    """Compares the age of every rank's stamp with the deadline.

    Args:
        plan: the job.
        start_timeout_s: the deadline until all ranks have done an iteration.
    """

    def __init__(self, plan: Plan, start_timeout_s: float) -> None:
        self.plan, self.start_timeout_s = plan, start_timeout_s
        self.stages = Stages(plan)

    def stall(
        self,
        stamps: dict[int, Stamp],
        now: float,
        *,
        started: bool,
        finished: Container[int],
        awake_s: float,
    ) -> Stall | None:
        """Looks for a rank that makes no progress.

        Args:
            stamps: what each rank is doing since when.
            now: the time, on the clock of the stamps.
            started: whether all ranks have done an iteration.
            finished: ranks that are done.
            awake_s: when this process last woke up; older stamps say nothing.

        Returns: whom to blame, or None.
        """
        deadline_s = self.plan.timeout_s if started else self.start_timeout_s
        ages = {
            rank: now - max(stamp.time_s, awake_s)
            for rank, stamp in stamps.items()
            if rank not in finished
        }
        if max(ages.values()) > deadline_s:
            name = "timeout_s" if started else "start_timeout_s"
            return self._blame(stamps, ages, deadline_s, name)
        return None

    def _blame(
        self, stamps: dict[int, Stamp], ages: dict[int, float], deadline_s: float, name: str
    ) -> Stall:
        """Blames a rank that hangs in its own work before any that wait for others."""
        waits = {rank: stamps[rank].stage in self.stages.waits for rank in ages}
        suspects = [
            rank
            for rank, age in ages.items()
            if age > deadline_s or (age > deadline_s / 2 and not waits[rank])
        ]
        blamed = min(suspects, key=lambda rank: (waits[rank], -ages[rank]))
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - ages[blamed]))
        lines = [
            f"no progress for {ages[blamed]:.1f} s, since {since} ({name}: {deadline_s:g}; if "
            "it is only slow, raise that)"
        ]
        waiting = [
            rank
            for rank, age in sorted(ages.items(), key=lambda item: -item[1])
            if age > deadline_s / 2 and waits[rank]
        ]
        if waiting:
            lines += [
                f"  waited for: {self.stages.words[stamps[waiting[0]].stage]}",
                f"  waiting: {self._list(waiting, stamps)}",
            ]
            place = stamps[waiting[0]]
            missing = [
                rank
                for rank, stamp in stamps.items()
                if stamp.iteration < place.iteration or stamp.stage != place.stage
            ]
            missing.sort(key=lambda rank: rank != blamed)
            lines.append(f"  missing: {self._list(missing, stamps) or 'nobody'}")
        return Stall(blamed, stamps[blamed], "\n".join(lines))

    def _list(self, ranks: list[int], stamps: dict[int, Stamp]) -> str:
        named = [
            f"{self.plan.rank_name(rank)} in {self.stages.words[stamps[rank].stage]}, iteration "
            f"{stamps[rank].iteration}"
            for rank in ranks[:NAMED_RANKS]
        ]
        if len(ranks) > NAMED_RANKS:
            named.append(f"and {len(ranks) - NAMED_RANKS} more")
        return "; ".join(named)
