"""Joins the ranks' reports of an iteration into one line."""

from typing import Any, Protocol

Report = dict[str, Any]
"""An `iteration` message of `communication/link.py`."""


class Joined(Protocol):
    """Collects reports until a line is complete."""

    def add(self, report: Report) -> list[Report]:
        """Adds a report. Returns: the reports of a line once complete, the decisive one last."""

    def rest(self) -> list[Report]:
        """Returns the reports of the last line, after the last report."""


class InStep:
    """Joins reports of ranks that work in step: a line is complete when all ranks have reported."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._open: dict[int, dict[int, Report]] = {}

    def add(self, report: Report) -> list[Report]:
        """See `Joined`."""
        found = self._open.setdefault(report["iteration"], {})
        found[report["rank"]] = report
        if len(found) < self._num_ranks:
            return []
        del self._open[report["iteration"]]
        return [found[rank] for rank in sorted(found)]

    def rest(self) -> list[Report]:
        """See `Joined`."""
        return []


class AsTheyCome:
    """Joins reports of asynchronous jobs: a server's report and the workers' before it are a line.

    Workers report their own iterations; the server reports when that many steps are done.
    A line is held until the server's next report, because a worker's report may arrive a little
    later than the server's report of the same step.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._line: Report | None = None
        self._workers: list[Report] = []

    def add(self, report: Report) -> list[Report]:
        """See `Joined`."""
        if report["rank"] != self._server:
            self._workers.append(report)
            return []
        complete = self.rest()
        self._line = report
        return complete

    def rest(self) -> list[Report]:
        """See `Joined`."""
        if self._line is None:
            return []
        values = mean_values(self._workers) | self._line["metrics"]
        complete = [*self._workers, {**self._line, "metrics": values}]
        self._workers, self._line = [], None
        return complete


def mean_values(reports: list[Report]) -> dict[str, float]:
    """Averages each metric over the reports that have it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report["metrics"].items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}
