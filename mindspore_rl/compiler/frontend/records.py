"""NamedTuples of the program: tuples of what is being read, whose parts have names."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class _Plain(NamedTuple):
    """A NamedTuple that is its fields alone."""


class Record(tuple):
    """The fields of a NamedTuple of the program."""

    kind: Any

    @classmethod
    def of(cls, kind: Any, parts: Iterable[Any]) -> "Record":
        """The record of a class, of what its fields stand for."""
        record = cls(parts)
        record.kind = kind
        return record

    @property
    def fields(self) -> tuple[str, ...]:
        """Their names."""
        return self.kind._fields


def is_record_class(kind: Any) -> bool:
    """Whether something is a class of NamedTuples."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def own_behaviour(kind: type) -> str:
    """Names what a class of NamedTuples does by itself: its base class or a method (`__iter__`).

    The values of such a record need not be those of its fields. Returns: "" if there is nothing.
    """
    if kind.__bases__ != (tuple,):
        return f"the base class {kind.__bases__[0].__name__}"
    own = [name for name in vars(kind) if name.startswith("__") and name not in vars(_Plain)]
    return f"the method {own[0]}" if own else ""


def wrong_field(fields: tuple[str, ...], names: list[str], known: Iterable[str]) -> str:
    """What is wrong with the fields that a record is made of; empty if nothing is.

    Args:
        fields: of its class.
        names: of those that are given.
        known: names of those that have a value without.
    """
    odd = [name for name in names if name not in fields or names.count(name) > 1]
    missing = [name for name in fields if name not in {*names, *known}]
    if odd:
        return f"with {odd[0]!r}{' twice' if odd[0] in fields else ''}"
    return f"without {missing[0]!r}" if missing else ""


def rebuilt(struct: tuple, parts: Iterable[Any]) -> tuple:
    """A tuple or a record like another one, of other parts."""
    return Record.of(struct.kind, parts) if isinstance(struct, Record) else tuple(parts)


def flattened(struct: Any) -> Iterator[Any]:
    """The parts of a tuple, those of tuples in it one by one; anything else as it is."""
    if isinstance(struct, tuple):
        for part in struct:
            yield from flattened(part)
    else:
        yield struct


def unflattened(struct: Any, parts: Iterator[Any]) -> Any:
    """A structure like another one, of other parts in the order of `flattened`."""
    if isinstance(struct, tuple):
        return rebuilt(struct, [unflattened(part, parts) for part in struct])
    return next(parts)


def alike(left: Any, right: Any) -> bool:
    """Whether two structures have the same fields, and tuples of the same lengths in them."""
    if not isinstance(left, tuple) or not isinstance(right, tuple):
        return isinstance(left, tuple) == isinstance(right, tuple)
    same = getattr(left, "kind", None) is getattr(right, "kind", None) and len(left) == len(right)
    return same and all(map(alike, left, right))
