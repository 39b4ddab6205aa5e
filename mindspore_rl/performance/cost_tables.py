"""Measured costs: fragments, messages, collectives and sleeps."""

import json
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.reading import read


@dataclass(frozen=True)
class Table:
    """Seconds by bytes, between which lines are drawn.

    Attributes:
        sizes: ascending.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, size: int) -> float:
        """Seconds of so many bytes; beyond the ends the last line goes on."""
        if len(self.sizes) == 1:
            return self.seconds[0]
        i = min(max(bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        return max(y0 + (y1 - y0) * (size - x0) / (x1 - x0), 0.0)


@dataclass(frozen=True)
class Link:
    """Messages between two ranks.

    Attributes:
        send: time of the sender's call, by bytes.
        receive: of the receiver's call, where the message is there already.
        transit: from the end of the sender's call to where the receiver may take it.
        reduce: a collective of two, from when the last one comes.
    """

    send: Table
    receive: Table
    transit: Table
    reduce: Table


@dataclass(frozen=True)
class Doing:
    """Something that a fragment does, in seconds.

    Attributes:
        alone: of each piece (a cell's are between its collectives), other cores idle.
        busy: the same while all other cores work.
        spread: of single times, what each piece was of its mean: whoever meets others between two
            pieces waits for the longest of theirs. Empty: they do not vary.
    """

    alone: tuple[float, ...]
    busy: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...] = ()

    def once(self, chance: random.Random) -> list[tuple[float, float]]:
        """One time that it is done: seconds of each piece, alone and busy."""
        times = chance.choice(self.spread) if self.spread else (1.0,) * len(self.alone)
        pairs = zip(times, self.alone, self.busy, strict=True)
        return [(times * alone, times * busy) for times, alone, busy in pairs]


@dataclass(frozen=True)
class FragmentCosts:
    """What a replica of a fragment does.

    Attributes:
        environments: of the replica that was measured.
        doings: by their names in its script, and of what is between two, `before > after`.
        work: operators that run in a call of a cell, their operations, and the bytes they move.
        asleep: doings that need no core.
        env_step_s: of a step of its environments in a cell, measured apart; 0: they are in none.
    """

    environments: int
    doings: dict[str, Doing]
    work: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    asleep: tuple[str, ...] = ()
    env_step_s: float = 0.0


@dataclass(frozen=True)
class MachineCosts:
    """What is the same for all jobs of a machine.

    Attributes:
        cores: that were there.
        near: messages between ranks of a host.
        oversleep_s: by how much a short sleep is longer than asked for.
        reported_s: what the coordinator does with each iteration's report.
        polling_share: of a core, that a rank takes which has long waited for a message.
        about: hardware, versions and date.
    """

    cores: int
    near: Link
    oversleep_s: float
    reported_s: float = 0.0
    polling_share: float = 0.0
    about: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """What a cell or an environment takes by its rows: `overhead_s + rows * row_s`.

    Attributes:
        residual: how far a measurement is from it at most, as a share of the measurement.
    """

    overhead_s: float
    row_s: float
    residual: float


def line(rows: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line of least squares; the mean of what was measured with one number of rows alone."""
    times = np.array(seconds)
    row_s, overhead_s = np.polyfit(rows, times, 1) if len(set(rows)) > 1 else (0.0, times.mean())
    off = np.abs(overhead_s + row_s * np.array(rows) - times)
    return Line(float(overhead_s), float(row_s), float(np.max(off / np.maximum(times, 1e-12))))


def load_machine(path: Path) -> MachineCosts:
    """Reads a machine's costs. Raises: MsrlError: they are not there, or of another version."""
    try:
        return read(MachineCosts, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MsrlError(
            f"{path} holds no costs of a machine ({type(error).__name__}: {error}); measure them: "
            "msrl calibrate"
        ) from error
