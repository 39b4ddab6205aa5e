"""Rate limiter of a replay table: waits for records, and for the ratio of samples to inserts."""

import math
import numbers
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mindspore_rl.errors import HeldBackError, ReplayError
from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table

SLICE_S = 0.05
"""Seconds between two calls of `Wait.waiting`; a change of the table ends a wait at once."""


@dataclass(frozen=True)
class Wait:
    """The maximum wait for other processes or threads.

    Args:
        timeout_s: seconds until an error; 0 does not wait.
        waiting: called repeatedly during a wait; raises to end it.
    """

    timeout_s: float = 0.0
    waiting: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        if not isinstance(self.timeout_s, numbers.Real) or not self.timeout_s >= 0:
            raise ReplayError(f"a wait of {self.timeout_s!r} s, expected a number from 0 on")
        if not callable(self.waiting):
            raise ReplayError(f"a wait calls {self.waiting!r}, expected a function")


NO_WAIT = Wait()
T = TypeVar("T")


def until(table: Table, attempt: Callable[[], T], wait: Wait) -> T:
    """Calls `attempt` until it succeeds, again after each change of the table.

    Args:
        table: that the attempt uses.
        attempt: changes nothing if it raises HeldBackError.
        wait: the maximum wait.

    Raises:
        ReplayError: the time is over; the message tells what was lacking last.
    """
    try:
        return attempt()
    except HeldBackError:
        end = time.monotonic() + wait.timeout_s
    while True:
        seen = functions().table_watch(table.base)
        try:
            return attempt()
        except HeldBackError as error:
            left = end - time.monotonic()
            if left <= 0:
                raise ReplayError(f"after {wait.timeout_s:g} s: {error}") from None
        wait.waiting()
        functions().table_sleep(table.base, seen, min(left, SLICE_S))


def check_batch(spec: TableSpec, count: int) -> None:
    """Raises: ReplayError: the rate limiter of a table can never allow so large a batch."""
    if count + spec.samples_per_insert > 2 * spec.slack and spec.samples_per_insert:
        raise ReplayError(
            f"a batch of {count} with {spec.samples_per_insert:g} samples per insert and a slack "
            f"of {spec.slack:g} would wait for ever; make the slack at least "
            f"{(count + spec.samples_per_insert) / 2:g}, or the batch smaller"
        )


def admit(table: Table, samples: int) -> None:
    """Counts samples. Raises: HeldBackError: the rate limiter holds them back."""
    if table.spec.limited and not functions().table_admit(table.base, samples):
        raise samples_held(table, samples)


def check_samples(spec: TableSpec, inserts: int, samples: int, more: int) -> None:
    """Raises: HeldBackError: after so many inserts and samples the rate limiter allows no more."""
    if inserts < spec.min_records and spec.limited:
        raise HeldBackError(
            f"{more} samples are held back: of {spec.min_records} records (min_records) "
            f"{inserts} were inserted, {spec.min_records - inserts} more inserts are lacking"
        )
    ratio, due = spec.samples_per_insert, more + samples - spec.slack
    if ratio and ratio * (inserts - spec.min_records) < due:
        lacking = math.ceil(due / ratio + spec.min_records - inserts)
        raise HeldBackError(
            f"{more} samples are held back: {_state(spec, inserts, samples)}; {lacking} more "
            "inserts are lacking"
        )


def samples_held(table: Table, samples: int) -> HeldBackError:
    """Explains why the rate limiter holds samples back now."""
    try:
        check_samples(table.spec, *_counts(table), samples)
    except HeldBackError as error:
        return error
    return HeldBackError(f"{samples} samples were held back until just now")


def inserts_held(table: Table, inserts_left: int) -> HeldBackError:
    """Explains why the rate limiter holds an insert back now."""
    spec, (inserts, samples) = table.spec, _counts(table)
    due = (inserts + 1 - spec.min_records) * spec.samples_per_insert - spec.slack
    return HeldBackError(
        f"{inserts_left} inserts are held back: {_state(spec, inserts, samples)}; "
        f"{math.ceil(due - samples)} more samples are lacking for the first"
    )


def _counts(table: Table) -> tuple[int, int]:
    return int(table.limit["inserts"]), int(table.limit["samples"])


def _state(spec: TableSpec, inserts: int, samples: int) -> str:
    return (
        f"{samples} samples were drawn of {inserts} inserts, with {spec.samples_per_insert:g} "
        f"samples per insert (slack {spec.slack:g}) after the first {spec.min_records}"
    )
