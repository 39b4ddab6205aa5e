"""Functions of Python that MindSpore does not compile, written so that it does."""

import functools
import itertools
import operator
from typing import Any

from mindspore import Tensor, ops
from mindspore.graph._parse import standard_method
from mindspore.ops import functional
from mindspore.ops.primitive import constexpr


def partial(function: Any, *args: Any, **named: Any) -> Any:
    """Computes `functools.partial`; MindSpore gives two of a function the arguments of one."""

    def call(*given: Any, **others: Any) -> Any:
        return function(*args, *given, **named, **others)

    return call


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


def mapped(function: Any, *several: Any) -> Any:
    """Computes `map`, also with a function that reads names around it."""
    return tuple([function(*given) for given in zip(*several)])  # noqa: B905


def islice(values: Any, *ends: Any) -> Any:
    """Computes `itertools.islice`."""
    return tuple(values)[slice(*ends)]


def chain(*several: Any) -> Any:
    """Computes `itertools.chain`."""
    found: tuple = ()
    for values in several:
        found = found + tuple(values)
    return found


def zipped(*several: Any) -> Any:
    """Computes `zip`, also of the keys of dictionaries."""
    parts = [tuple(part.keys()) if isinstance(part, dict) else part for part in several]
    return standard_method.ms_zip(*parts)


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


def merged(*several: Any) -> Any:
    """Computes `{**one, **other}`, which MindSpore nests, of dictionaries and of lists of pairs."""
    found: dict = {}
    for one in several:
        for key, value in one.items() if isinstance(one, dict) else one:
            found[key] = value
    return found


def clone(owner: Any) -> Any:
    """Computes `owner.clone()`, which MindSpore does not compile of arrays."""
    return owner.copy() if isinstance(owner, Tensor) else owner.clone()


def argmax(owner: Any) -> Any:
    """Computes `owner.argmax()` over all of an array; MindSpore takes its last axis."""
    return owner.argmax(None) if isinstance(owner, Tensor) else owner.argmax()


def union(one: Any, other: Any) -> Any:
    """Computes `one | other` of dictionaries."""
    return merged(one, other)


def reductions(owner: Any, method: str, *args: Any, **named: Any) -> Any:
    """Computes `owner.max(axis)`: of an array its values and places, as uncompiled code does."""
    if isinstance(owner, Tensor) and isinstance(args[0], int):
        return getattr(ops, method)(owner, *args)
    return getattr(owner, method)(*args, **named)


def power(x: Any, y: Any) -> Any:
    """Computes `x ** y` of numbers; MindSpore gives 0 for `10 ** -3`."""
    return _whole_power(x, y) if _known(x, y) else functional.scalar_pow(x, y)


def rest(x: Any, y: Any) -> Any:
    """Computes `x % y` of numbers; MindSpore fails above 2^31."""
    return _whole_rest(x, y) if _known(x, y) else functional.scalar_mod(x, y)


def _known(x: Any, y: Any) -> Any:
    """Returns whether both are whole numbers that are known at compilation."""
    whole = isinstance(x, int) and isinstance(y, int)
    return whole and functional.isconstant(x) and functional.isconstant(y)


_whole_power, _whole_rest = constexpr(operator.pow), constexpr(operator.mod)

GIVEN = {
    functools.partial: partial,
    functools.reduce: reduce,
    itertools.accumulate: accumulate,
    itertools.chain: chain,
    itertools.islice: islice,
    itertools.pairwise: pairwise,
    itertools.product: product,
    itertools.repeat: repeat,
    map: mapped,
    reversed: backwards,
    zip: zipped,
}
OF_ARRAYS = {"argmax": argmax, "clone": clone}
"""Functions for methods of arrays that are called without arguments."""
