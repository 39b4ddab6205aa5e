"""Classes of values with names: NamedTuples and dataclasses."""

import dataclasses
from typing import Any


def is_record_class(kind: Any) -> bool:
    """Returns whether a value is a NamedTuple class or a dataclass."""
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def is_record(value: Any) -> bool:
    """Returns whether a value is a NamedTuple or an instance of a dataclass."""
    return is_record_class(type(value))


def fields_of(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields of such a class, in order."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields)


def defaults_of(kind: Any) -> dict[str, Any]:
    """Returns the default values of the fields that have one."""
    if not dataclasses.is_dataclass(kind):
        return dict(kind._field_defaults)
    known = ((field.name, field.default) for field in dataclasses.fields(kind))
    return {name: value for name, value in known if value is not dataclasses.MISSING}


def in_order(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields that the constructor takes by position."""
    if not dataclasses.is_dataclass(kind):
        return fields_of(kind)
    return tuple(field.name for field in dataclasses.fields(kind) if not field.kw_only)


def own_constructor(kind: Any) -> str:
    """Names the method by which such a class may change the fields that it is given; "" if none."""
    if dataclasses.is_dataclass(kind):
        if hasattr(kind, "__post_init__"):
            return "__post_init__"
        return "" if kind.__dataclass_params__.init else "__init__"  # type: ignore[union-attr]
    for cls in kind.__mro__:
        if "_fields" in vars(cls):  # made by `namedtuple`
            return ""
        if own := vars(cls).keys() & {"__new__", "__init__"}:
            return own.pop()
    return ""


def values_of(record: Any) -> tuple[Any, ...]:
    """Returns the values of a record's fields, in order."""
    if isinstance(record, tuple):
        return tuple(record)
    return tuple(getattr(record, name) for name in fields_of(type(record)))


def made_of(kind: Any, values: Any) -> Any:
    """Makes a record of the values of its fields, in order."""
    return kind(**dict(zip(fields_of(kind), values, strict=True)))
