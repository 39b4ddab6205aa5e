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
class CostTable:
    """Seconds by bytes, interpolated linearly.

    Attributes:
        sizes: ascending.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, size: int) -> float:
        """Interpolates the seconds of so many bytes; extrapolates the first and the last line."""
        if len(self.sizes) == 1:
            return self.seconds[0]
        i = min(max(bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        return max(y0 + (y1 - y0) * (size - x0) / (x1 - x0), 0.0)


@dataclass(frozen=True)
class LinkCosts:
    """Costs of messages between two ranks.

    Attributes:
        send: time of the sender's call, by bytes.
        receive: time of the receiver's call if the message has already arrived.
        transit: from the end of the sender's call until the receiver may take the message.
        reduce: a collective of two ranks, from the arrival of the last.
    """

    send: CostTable
    receive: CostTable
    transit: CostTable
    reduce: CostTable


@dataclass(frozen=True)
class Doing:
    """Measured seconds of one thing that a fragment does, such as a cell.

    Attributes:
        alone: seconds of each piece while other cores are idle; a cell's pieces lie between its
            collectives.
        busy: the same while all other cores work.
        spread: samples, as factors of each piece's mean. Their variation matters: a rank that meets
            others between two pieces waits for the slowest. Empty: no variation.
    """

    alone: tuple[float, ...]
    busy: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...] = ()

    def once(self, chance: random.Random) -> list[tuple[float, float]]:
        """Samples one execution: seconds of each piece, alone and busy."""
        times = chance.choice(self.spread) if self.spread else (1.0,) * len(self.alone)
        pairs = zip(times, self.alone, self.busy, strict=True)
        return [(times * alone, times * busy) for times, alone, busy in pairs]


@dataclass(frozen=True)
class FragmentCosts:
    """Measured costs of a replica of a fragment.

    Attributes:
        environments: number of environments of the measured replica.
        doings: by name in the rank's script, and of the gaps between two names, `before > after`.
        work: for each cell the operators launched in a call, their flops and the bytes they move.
        asleep: names of doings that need no core.
        env_step_s: seconds of an environment step in a cell, measured apart; 0: not in cells.
    """

    environments: int
    doings: dict[str, Doing]
    work: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    asleep: tuple[str, ...] = ()
    env_step_s: float = 0.0


@dataclass(frozen=True)
class MachineCosts:
    """Measured costs of a machine, the same for all jobs.

    Attributes:
        cores: number of cores of the machine.
        near: messages between ranks of one host.
        oversleep_s: by how much a short sleep exceeds the requested time.
        reported_s: time that the coordinator takes for an iteration's report.
        polling_share: share of a core that a rank takes while it waits for a message for long.
        about: hardware, versions and date.
    """

    cores: int
    near: LinkCosts
    oversleep_s: float
    reported_s: float = 0.0
    polling_share: float = 0.0
    about: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A cost model of a cell or an environment by its rows: `overhead_s + rows * row_s`.

    Attributes:
        residual: the largest relative deviation of a measurement from the line.
    """

    overhead_s: float
    row_s: float
    residual: float


def line(rows: Sequence[int], seconds: Sequence[float]) -> Line:
    """Fits a line by least squares; the mean if only one number of rows was measured."""
    times = np.array(seconds)
    row_s, overhead_s = np.polyfit(rows, times, 1) if len(set(rows)) > 1 else (0.0, times.mean())
    off = np.abs(overhead_s + row_s * np.array(rows) - times)
    return Line(float(overhead_s), float(row_s), float(np.max(off / np.maximum(times, 1e-12))))


def load_machine(path: Path) -> MachineCosts:
    """Reads a machine's costs. Raises: MsrlError: there are none, or of another version."""
    try:
        return read(MachineCosts, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MsrlError(
            f"{path} holds no costs of a machine ({type(error).__name__}: {error}); measure them: "
            "msrl calibrate"
        ) from error
