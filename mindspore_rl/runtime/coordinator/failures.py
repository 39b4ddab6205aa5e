"""Failures of a job: says with rank, fragment, iteration and stage what has happened."""

from collections.abc import Callable
from typing import Any

from mindspore_rl.communication.link import SILENCE_S
from mindspore_rl.errors import JobFailure
from mindspore_rl.plan.plan import Plan
from mindspore_rl.runtime.coordinator.events import Examine, Remains
from mindspore_rl.runtime.coordinator.launch import LOG_LINES, WORKERS_LOG
from mindspore_rl.runtime.coordinator.stall_detector import Watchdog
from mindspore_rl.runtime.heartbeat import Stamp


class Stalled(JobFailure):
    """A rank made no progress within the deadline."""


class Unreached(JobFailure):
    """No rank could be started on a host."""


class Failures:
    """Makes the failures of a job.

    Args:
        plan: the job.
        watchdog: finds the rank that is to blame for a stall.

    Attributes:
        checkpoint: the last good one, if there is any.
        proxies: host, and number of the process that has started it, of each rank that said hello.
        finished: iterations done by each rank that has finished.
    """

    def __init__(self, plan: Plan, watchdog: Watchdog) -> None:
        self._plan, self._watchdog = plan, watchdog
        self.checkpoint: str | None = plan.resume or None
        self.proxies: dict[int, tuple[str, int]] = {}
        self.finished: dict[int, int] = {}

    def explain(self, found: Examine, stamp: Stamp | None, remains: Remains) -> JobFailure:
        """Returns the failure that the evidence explains.

        Args:
            found: the order to examine.
            stamp: the last stamp of the rank, if a rank failed.
            remains: the evidence.
        """
        if remains.lost_proxy:
            host, pid = self.proxies.get(found.rank, ("a host", "unknown"))
            text = "was killed, and the ranks that it had started died with it"
            return self._job_failure(f"Hydra's proxy (pid {pid}) on {host} {text}")
        if found.what == "mpiexec":
            silent = self._silent_hosts()
            tail = [f"The end of {WORKERS_LOG}:", *remains.log.splitlines()[-LOG_LINES:]]
            return self._job_failure(
                f"{remains.who} ended ({_ending(remains.status)}) before the job{silent}",
                "\n".join(tail),
                kind=Unreached if silent else JobFailure,
            )
        if found.what == "scheduler":
            waiting_for = set(self._plan.group_ranks) - set(self.finished)
            return self._job_failure(
                f"{remains.who} ended ({_ending(remains.status)}) before "
                f"{self._plan.rank_name(min(waiting_for))}: {remains.words}"
            )
        if found.stall is not None:
            rank, text = self._watchdog.blame(found.stall, remains.stopped)
            if rank is None:
                return self._job_failure(text, kind=Stalled)
            text += remains.actions.get(rank, "")
            where = self._where(found.stall.stamps[rank])
            return self.of_rank(rank, *where, text, kind=Stalled)
        assert stamp is not None
        where = self._where(stamp)
        if found.lost:
            host = f"host {self._plan.hosts[found.rank]}" if self._plan.hosts else "its host"
            text = f"{host} has not been heard of for {SILENCE_S} s ({found.lost}); is it up, "
            return self.of_rank(found.rank, *where, text + "and its network connected?")
        how = f"died (killed by signal {remains.signal})" if remains.signal else "died"
        how += remains.actions.get(found.rank, "")
        printed = ["It printed:", *remains.output] if remains.output else []
        return self.of_rank(found.rank, *where, how, "\n".join(printed))

    def _where(self, stamp: Stamp) -> tuple[int, str]:
        return stamp.iteration, self._watchdog.stages.words[stamp.stage]

    def told(self, rank: int, error: dict[str, Any]) -> JobFailure:
        """Returns the failure that a rank has reported."""
        where = error["iteration"], error["stage"]
        trace = "" if error["mistake"] else error["traceback"]
        return self.of_rank(rank, *where, error["message"], trace, error["mistake"])

    def of_rank(
        self,
        rank: int,
        iteration: int,
        stage: str,
        message: str,
        trace: str = "",
        mistake: bool = False,
        kind: Callable[..., JobFailure] = JobFailure,
    ) -> JobFailure:
        """Returns the failure of a rank, see `JobFailure`; with an iteration of -1 of its start."""
        where = f"iteration {iteration}, {stage}" if iteration >= 0 else stage
        return self._job_failure(
            f"{self._plan.rank_name(rank)}, {where}: {message}", trace, mistake, kind
        )

    def _job_failure(
        self,
        text: str,
        trace: str = "",
        mistake: bool = False,
        kind: Callable[..., JobFailure] = JobFailure,
    ) -> JobFailure:
        parts = [text, trace.rstrip()]
        if self.checkpoint is not None:
            parts.append(f"Last good checkpoint: {self.checkpoint}")
        return kind("\n".join(filter(None, parts)), mistake)

    def _silent_hosts(self) -> str:
        """Names the hosts from which no rank has said hello."""
        heard = {self._plan.hosts[rank] for rank in self.proxies if self._plan.hosts}
        silent = [host for host in dict.fromkeys(self._plan.hosts) if host not in heard]
        return f"; no rank on {', '.join(silent)} has started" if silent else ""


def _ending(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
