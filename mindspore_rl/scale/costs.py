"""What things cost, as measured: the doings of fragments, messages, collectives and sleeps."""

import json
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

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
        spread: what single times are of their mean; who waits for several waits for the longest.
    """

    alone: tuple[float, ...]
    busy: tuple[float, ...]
    spread: tuple[float, ...] = (1.0,)


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


def load_machine(path: Path) -> MachineCosts:
    """Reads a machine's costs. Raises: MsrlError: they are not there, or of another version."""
    try:
        return read(MachineCosts, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MsrlError(
            f"{path} holds no costs of a machine ({type(error).__name__}: {error}); measure them: "
            "msrl calibrate"
        ) from error
