"""Records of the program, NamedTuples and frozen dataclasses: tuples whose parts have names."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore_rl.rl.by_place import Named
from mindspore_rl.rl.records import fields_of


class _Plain(NamedTuple):
    """A NamedTuple without other members than its fields."""


@dataclass(frozen=True)
class _Frozen:
    """A dataclass without other members than its fields."""


class Record(tuple):
    """The fields of a NamedTuple or a dataclass of the program."""

    kind: Any

    @classmethod
    def of(cls, kind: Any, parts: Iterable[Any]) -> "Record":
        """Makes a record of a class from the values of its fields."""
        record = cls(parts)
        record.kind = kind
        return record

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return fields_of(self.kind)


def own_behaviour(kind: type) -> str:
    """Names the own behaviour of a record's class: its base class or a method (`__iter__`).

    The values of such a record may differ from its fields. Returns: "" if it has none.
    """
    like, base = (_Frozen, object) if dataclasses.is_dataclass(kind) else (_Plain, tuple)
    if kind.__bases__ != (base,):
        return f"the base class {kind.__bases__[0].__name__}"
    if like is _Frozen:
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return "fields that may change"
        for field in dataclasses.fields(kind):
            if not field.init or field.default_factory is not dataclasses.MISSING:
                return f"the field {field.name}, which is made by a function"
    known = {*vars(like), *OF_A_CLASS}
    own = [name for name in vars(kind) if name.startswith("__") and name not in known]
    return f"the method {own[0]}" if own else ""


OF_A_CLASS = ("__annotations__", "__doc__", "__slots__")
"""Members of a class that are no methods."""


def is_sequence(struct: Any) -> bool:
    """Returns whether a value is a tuple in the program: a dataclass has no order."""
    return isinstance(struct, tuple) and not (
        isinstance(struct, Record) and dataclasses.is_dataclass(struct.kind)
    )


def wrong_field(fields: tuple[str, ...], names: list[str], known: Iterable[str]) -> str:
    """Describes an error in the fields of a record's constructor; empty if there is none.

    Args:
        fields: the fields of its class.
        names: the fields that are given.
        known: the fields with a default value.
    """
    odd = [name for name in names if name not in fields or names.count(name) > 1]
    missing = [name for name in fields if name not in {*names, *known}]
    if odd:
        return f"with {odd[0]!r}{' twice' if odd[0] in fields else ''}"
    return f"without {missing[0]!r}" if missing else ""


class Listed(tuple):
    """The parts of a list of the program.

    Attributes:
        mark: the identities of the lists that it may be; empty if they are not known.
    """

    mark: frozenset[object]

    @classmethod
    def of(cls, parts: Iterable[Any], like: Any = None) -> "Listed":
        """Makes the parts of a list: a new one, or one that has been read already."""
        made = cls(parts)
        made.mark = frozenset([object()]) if like is None else like.mark
        return made


class Entries(dict):
    """The entries of a dictionary of the program.

    Attributes:
        mark: see `Listed`.
        default: the function of a `defaultdict`; None: it is none.
    """

    mark: frozenset[object]
    default: Any = None

    @classmethod
    def of(cls, entries: Any, like: Any = None) -> "Entries":
        """Makes the entries of a dictionary: a new one, or one that has been read already."""
        made = cls(entries)
        made.default = getattr(like, "default", None)
        made.mark = frozenset([object()]) if like is None else like.mark
        return made


def rebuilt(struct: Any, parts: Iterable[Any]) -> Any:
    """Makes a tuple, a list, a record or a dictionary like another one, with other parts."""
    if isinstance(struct, dict):
        made = zip(struct, parts, strict=True)
        return Entries.of(made, struct) if isinstance(struct, Entries) else dict(made)
    if isinstance(struct, Listed):
        return Listed.of(parts, struct)
    return Record.of(struct.kind, parts) if isinstance(struct, Record) else tuple(parts)


def is_record(struct: Any) -> bool:
    """Returns whether a value is a record or a dictionary: its parts have names."""
    return isinstance(struct, (Record, dict))


def parts_of(struct: Any) -> tuple[Any, ...]:
    """Returns the parts of a tuple, a record or a dictionary."""
    return tuple(struct.values()) if isinstance(struct, dict) else tuple(struct)


def form(struct: Any) -> tuple:
    """Returns the form of a record or a dictionary, see `rl.by_place`; `()` for another value."""
    if not is_record(struct):
        return ()
    names = map(repr, struct) if isinstance(struct, dict) else struct.fields
    return tuple(zip(names, map(form, parts_of(struct)), strict=True))


def named_in(struct: Any) -> Named | None:
    """Returns what is named in a record, a dictionary or a tuple of such; None for others."""
    if not isinstance(struct, tuple):
        return Named.of(form(struct))
    parts = tuple(map(named_in, struct))
    if isinstance(struct, Record):
        return Named(struct.kind, tuple(zip(struct.fields, parts, strict=True)))
    return Named(tuple, tuple((str(i), p) for i, p in enumerate(parts))) if any(parts) else None


def plain(struct: Any) -> Any:
    """Makes tuples of the records and dictionaries in a structure."""
    return tuple(map(plain, parts_of(struct))) if isinstance(struct, (tuple, dict)) else struct


def flattened(struct: Any) -> Iterator[Any]:
    """Yields the parts of a tuple or a dictionary, and those in it; any other value itself."""
    if isinstance(struct, (tuple, dict)):
        for part in parts_of(struct):
            yield from flattened(part)
    else:
        yield struct


def unflattened(struct: Any, parts: Iterator[Any]) -> Any:
    """Makes a structure like another one, with other parts in the order of `flattened`."""
    if not isinstance(struct, (tuple, dict)):
        return next(parts)
    made = [unflattened(part, parts) for part in parts_of(struct)]
    if isinstance(struct, dict):
        return Entries.of(zip(struct, made, strict=True))
    return rebuilt(struct, made)


def alike(left: Any, right: Any) -> bool:
    """Returns whether two structures have the same names, and tuples of the same lengths."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(map(alike, left.values(), right.values()))
    if not isinstance(left, tuple) or not isinstance(right, tuple):
        return not any(isinstance(side, (tuple, dict)) for side in (left, right))
    same = getattr(left, "kind", None) is getattr(right, "kind", None) and len(left) == len(right)
    return same and all(map(alike, left, right))
