"""Functions of Python that MindSpore does not compile, written so that it does."""

import functools
import itertools
import operator
from typing import Any

from mindspore import Tensor, ops


def backwards(values: Any) -> Any:
    """Computes `reversed(values)`."""
    return tuple(values)[::-1]


def reduce(function: Any, values: Any, *first: Any) -> Any:
    """Computes `functools.reduce`."""
    return accumulated(function, values, *first)[-1]


def accumulate(values: Any, func: Any = None, *, initial: Any = None) -> Any:
    """Computes `itertools.accumulate`."""
    first = () if initial is None else (initial,)
    return accumulated(operator.add if func is None else func, values, *first)


def accumulated(function: Any, values: Any, *first: Any) -> Any:
    """Returns all that a reduction gives on its way."""
    values = (*first, *values)
    found: tuple = (values[0],)
    for value in values[1:]:
        found = (*found, function(found[-1], value))
    return found


def chain(*several: Any) -> Any:
    """Computes `itertools.chain`."""
    found: tuple = ()
    for values in several:
        found = found + tuple(values)
    return found


def repeat(value: Any, times: int) -> Any:
    """Computes `itertools.repeat`."""
    return (value,) * times


def pairwise(values: Any) -> Any:
    """Computes `itertools.pairwise`."""
    values = tuple(values)
    return tuple([(values[k], values[k + 1]) for k in range(len(values) - 1)])


def product(*several: Any) -> Any:
    """Computes `itertools.product`."""
    found: tuple = ((),)
    for values in several:
        found = chain(*[[(*before, value) for value in values] for before in found])
    return found


def reductions(owner: Any, method: str, *args: Any, **named: Any) -> Any:
    """Computes `owner.max(axis)`: of an array its values and places, as uncompiled code does."""
    if isinstance(owner, Tensor) and isinstance(args[0], int):
        return getattr(ops, method)(owner, *args)
    return getattr(owner, method)(*args, **named)


GIVEN = {
    functools.reduce: reduce,
    itertools.accumulate: accumulate,
    itertools.chain: chain,
    itertools.pairwise: pairwise,
    itertools.product: product,
    itertools.repeat: repeat,
    reversed: backwards,
}
