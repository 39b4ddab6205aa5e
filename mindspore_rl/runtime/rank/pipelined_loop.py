"""Pipelines loops over chunks or parts of a rank's environments.

The loop is a generator, one for each chunk. It yields before it receives; meanwhile the other
chunks run. Chunks run always in the same order: while this rank works on one chunk, the ranks that
it sends to work on earlier chunks. Parts, whose messages come from different ranks, run in the
order in which these arrive.
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from mindspore_rl.runtime.rank.arrays import to_host

Axes = Any
"""Axis of environments of an array, None for a replicated value, a tuple for several arrays."""


def in_turn(waiting: dict[int, Any]) -> int:
    """Chooses the part that has waited longest, and lets it wait behind the others from now on."""
    number = next(iter(waiting))
    waiting[number] = waiting.pop(number)
    return number


def run_parts(
    loop: Callable[..., Generator[Any, None, tuple]],
    runtimes: list[Any],
    rows: list[slice],
    inputs: tuple[tuple[Any, Axes], ...],
    axes: tuple[Axes, ...],
    ready: Callable[[dict[int, Any]], int],
) -> tuple:
    """Runs a loop for every chunk or part, interleaved.

    Args:
        loop: the generator, a function of a part's runtime and its share of the inputs; of parts it
            yields the edge of the message that it receives next.
        runtimes: of the parts.
        rows: positions of each part among the rank's environments.
        inputs: of the loop, with their axes.
        axes: of the results.
        ready: returns the number of the part to go on with, of those that wait, with what they have
            yielded: `in_turn`, or one whose messages have arrived.

    Returns: the results of all parts joined.
    """
    turns = [
        loop(runtime, *[take(value, axis, place) for value, axis in inputs])
        for runtime, place in zip(runtimes, rows, strict=True)
    ]
    results: list[tuple] = [()] * len(turns)
    waiting: dict[int, Any] = {}

    def go_on(number: int) -> None:
        try:
            waiting[number] = next(turns[number])
        except StopIteration as end:
            waiting.pop(number, None)
            results[number] = end.value

    for number in range(len(turns)):
        go_on(number)
    while waiting:
        go_on(ready(waiting))
    return tuple(join([result[i] for result in results], axis, rows) for i, axis in enumerate(axes))


def take(value: Any, axes: Axes, rows: slice) -> Any:
    """Returns one chunk of a value, as a view."""
    if isinstance(axes, tuple):
        return tuple(take(part, axis, rows) for part, axis in zip(value, axes, strict=True))
    return value if axes is None else to_host(value)[(slice(None),) * axes + (rows,)]


def join(parts: list[Any], axes: Axes, rows: list[slice]) -> Any:
    """Joins the chunks of a value; a replicated value is the same in all."""
    if isinstance(axes, tuple):
        return tuple(join([p[i] for p in parts], axis, rows) for i, axis in enumerate(axes))
    if axes is None:
        return parts[0]
    arrays = [to_host(part) for part in parts]
    shape = list(arrays[0].shape)
    shape[axes] = sum(array.shape[axes] for array in arrays)
    whole = np.empty(shape, arrays[0].dtype)
    for array, place in zip(arrays, rows, strict=True):
        whole[(slice(None),) * axes + (place,)] = array
    return whole
