"""Reads dataclasses, tuples and dictionaries back from JSON."""

from dataclasses import is_dataclass
from itertools import repeat
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

_TAKEN = {bool: (bool,), int: (int,), float: (float, int), str: (str,)}


def read(kind: Any, data: Any) -> Any:
    """Rebuilds a value of a type from the JSON of its `dataclasses.asdict`.

    Raises:
        KeyError, TypeError, ValueError: the data does not match the type.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{key: read(hints[key], value) for key, value in dict(data).items()})
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(map(read, repeat(args[0]) if args[-1] is Ellipsis else args, data))
    if origin is dict:
        return {key: read(args[1], value) for key, value in dict(data).items()}
    if origin is UnionType:  # X | None
        return None if data is None else read(args[0], data)
    if kind in (bool, int, float, str) and type(data) not in _TAKEN[kind]:
        raise TypeError(f"it has {str(data)[:100]!r} where {kind.__name__} is expected")
    return data
