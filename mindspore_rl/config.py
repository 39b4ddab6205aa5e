"""Configurations: frozen dataclasses whose fields are the flags and the YAML keys."""

import dataclasses
import difflib
import math
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from mindspore_rl.errors import ConfigError
from mindspore_rl.platform.other_names import meant
from mindspore_rl.platform.yaml_files import YamlKeys, read_yaml

_LARGEST_EXPONENT = 18  # "1e999999999" must be an error, not a number of a gigabyte


@dataclasses.dataclass(frozen=True)
class Range:
    """A range of numbers: at least `ge`, at most `le`, and more than `gt`."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            (self.ge is None or number >= self.ge)
            and (self.le is None or number <= self.le)
            and (self.gt is None or number > self.gt)
        )

    def __str__(self) -> str:
        """Returns the range in words; empty if all numbers are allowed."""
        if self.ge is not None and self.le is not None:
            return f"{self.ge:.10g} to {self.le:.10g}"
        bounds = (("at least", self.ge), ("at most", self.le), ("more than", self.gt))
        return " and ".join(f"{word} {bound:.10g}" for word, bound in bounds if bound is not None)


_BEFORE = {"least": "ge", "most": "le", "above": "gt"}
"""Names that bounds had before; they work for a version."""
REQUIRED = {
    "env": Range(),
    "seed": Range(0, 2**32 - 1),
    "num_envs": Range(1),
    "num_steps": Range(1),
    "total_steps": Range(1),
}
"""Keys that the configuration of every algorithm has; their fields need no range of their own."""


def option(
    default: Any, text: str, *, divides: str = "", in_older_runs: Any = None, **bounds: float
) -> Any:
    """Makes a field of a configuration.

    Args:
        default: default value.
        text: help text for `--help`.
        divides: name of the field that it divides without remainder, such as `num_steps`.
        in_older_runs: its value in runs whose saved configuration lacks it; None: the default.
        bounds: bounds of its number, or of each of its numbers, see `Range`.
    """
    bounds = {_BEFORE.get(name, name): bound for name, bound in bounds.items()}
    allowed = {"range": Range(**bounds)} if bounds else {}
    older = {} if in_older_runs is None else {"older": in_older_runs}
    metadata = {"help": text, "divides": divides, **allowed, **older}
    return dataclasses.field(default=default, metadata=metadata)


def resolve(
    config_class: type,
    yaml_file: Path | YamlKeys | None,
    flags: Mapping[str, object],
    assignments: Sequence[str],
    others: Collection[str] = (),
    base: Mapping[str, object] | None = None,
    values: Mapping[str, object] | None = None,
) -> Any:
    """Builds a configuration: base over defaults, then YAML, flags, assignments and values.

    Args:
        config_class: a frozen dataclass whose fields are int, float, bool, str, `tuple[X, ...]` of
            these, or `X | None`.
        yaml_file: a YAML mapping from field to value, or its keys if it has been read; an empty
            file changes nothing. A field `tuple[C, ...]` with a dataclass C is a list of such
            mappings.
        flags: field to value; None means that the flag was not given.
        assignments: `key=value` texts; the last one of a key wins.
        others: keys of the job, which an unknown key may be meant for.
        base: the result of `to_dict` of such a configuration, perhaps by an older version, used
            instead of the defaults.
        values: field to value, given by a program.

    Returns:
        An instance of `config_class`.

    Raises:
        ConfigError: the file is unreadable, a key unknown, a value missing or of the wrong type, or
            the class's own checks raise a ValueError.
    """
    keys = keys_of(config_class)
    given: dict[str, object] = {}
    if base:
        older = {field.name: field.metadata.get("older") for field in _fields(config_class)}
        given = {name: value for name, value in older.items() if value is not None}
    for key, value in (base or {}).items():
        given[key] = checked(key, value, keys, "earlier configuration", f"{key}=")
    if yaml_file is not None:
        written = read_yaml(yaml_file) if isinstance(yaml_file, Path) else yaml_file
        for key, value in written.items():
            given[key] = checked(key, value, keys, str(written.file), f"{key}: ", others)
    for key, value in flags.items():
        if value is not None:
            flag = f"--{key.replace('_', '-')}"
            given[key] = checked(key, value, keys, f"flag {flag}", f"{flag} ")
    for key, text in map(_split, assignments):
        given[key] = checked(key, text, keys, f"argument {key}={text}", f"{key}=")
    for key, value in (values or {}).items():
        given[key] = checked(key, value, keys, "config", f"{key}=", others)
    return _built(config_class, given, keys)


def _built(config_class: type, given: Mapping[str, object], keys: Mapping[str, "ConfigKey"]) -> Any:
    """Makes an instance from checked values."""
    missing = [
        field.name
        for field in _fields(config_class)
        if field.name not in given and _default(field) is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(
            f"{config_class.__name__} has no default for {', '.join(missing)}: "
            f"give a value, for example {missing[0]}={keys[missing[0]].example}"
        )
    try:
        config = config_class(**given)
    except ValueError as error:
        raise ConfigError(f"{config_class.__name__}: {error}") from error
    for field in _fields(config_class):
        name, whole = field.name, field.metadata.get("divides")
        if whole and getattr(config, whole) % getattr(config, name):
            raise ConfigError(
                f"{config_class.__name__}: {name}={getattr(config, name)} does not divide {whole}="
                f"{getattr(config, whole)}; choose one that does"
            )
    return config


def _nested(config_class: type, value: object) -> Any:
    """Reads one item of a list of dataclasses."""
    if not isinstance(value, dict):
        raise ValueError(value)
    keys = keys_of(config_class)
    given = {
        key: checked(key, item, keys, config_class.__name__, f"{key}: ")
        for key, item in value.items()
    }
    return _built(config_class, given, keys)


def to_dict(config: Any) -> dict[str, Any]:
    """Returns the fields as plain values for YAML and JSON; `resolve` reads them back."""
    values = {field.name: getattr(config, field.name) for field in _fields(type(config))}
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def help_text(config_class: type) -> str:
    """Lists key, type, default and help of every field, one aligned line each."""
    rows = [
        (
            field.name,
            _name(key.kind),
            "required" if _default(field) is dataclasses.MISSING else _show(_default(field)),
            ", ".join(filter(None, (*_told(field), str(key.range)))),
        )
        for field, key in zip(_fields(config_class), keys_of(config_class).values(), strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _told(field: dataclasses.Field) -> tuple[str, str]:
    whole = field.metadata.get("divides")
    return str(field.metadata.get("help", "")), f"divides {whole}" if whole else ""


def _fields(config_class: type) -> list[dataclasses.Field]:
    if not dataclasses.is_dataclass(config_class):
        raise ConfigError(
            f"{config_class.__name__} must be a dataclass: write @dataclass(frozen=True) above it"
        )
    return [field for field in dataclasses.fields(config_class) if field.init]


class ConfigKey(NamedTuple):
    """The properties of a field: its kind, an example value, and the range of its numbers."""

    kind: Any
    example: str
    range: Range


def keys_of(config_class: type) -> dict[str, ConfigKey]:
    """Returns the keys of a configuration.

    Raises:
        ConfigError: the class is not a dataclass, or a field has an unsupported kind or divides one
            that is none.
    """
    hints = get_type_hints(config_class)
    keys = {}
    for field in _fields(config_class):
        kind = hints[field.name]
        if not _supported(kind):
            raise ConfigError(
                f"{config_class.__name__}.{field.name} is annotated {kind}, expected int, float, "
                "bool, str, tuple[X, ...] of these or X | None, for example `tuple[int, ...]`"
            )
        whole = field.metadata.get("divides") or field.name
        if whole not in hints:
            raise ConfigError(
                f"{config_class.__name__}.{field.name} divides {whole!r}, expected a field's name"
            )
        allowed = field.metadata.get("range") or REQUIRED.get(field.name) or Range()
        keys[field.name] = key_of(kind, _default(field), allowed)
    return keys


def key_of(kind: Any, default: object, allowed: Range) -> ConfigKey:
    """A key of a kind, with its default as the example if it has one."""
    return ConfigKey(kind, _example(kind, default), allowed)


def _supported(kind: Any) -> bool:
    kind, _ = _without_none(kind)
    if get_origin(kind) is tuple:
        element, *rest = get_args(kind)
        return rest == [Ellipsis] and (element in _PARSERS or _haskeys_of(element))
    return kind in _PARSERS


def _haskeys_of(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def checked(
    key: str,
    value: object,
    keys: Mapping[str, ConfigKey],
    origin: str,
    written: str,
    others: Collection[str] = (),
) -> object:
    """Parses and checks one value.

    Args:
        key: its key.
        value: the value as given.
        keys: see `keys_of`.
        origin: where it was given, for errors.
        written: the text in front of a value there, such as `gamma: `, for examples in errors.
        others: further keys to suggest for an unknown one.

    Returns: the value, of the key's kind.

    Raises:
        ConfigError: the key is unknown, or the value has another kind or is out of range.
    """
    if key not in keys:
        raise ConfigError(f"{origin}: {unknown(key, keys, others)}")
    kind, example, allowed = keys[key]
    try:
        found = parse(value, kind)
    except ConfigError as error:  # from an item with keys of its own
        raise ConfigError(f"{origin}: {key}: {error}") from None
    except (ValueError, ArithmeticError):
        raise ConfigError(
            f"{origin}: {key} is {value!r} ({type(value).__name__}), "
            f"expected {_name(kind)}, for example `{written}{example}`"
        ) from None
    for one in found if isinstance(found, tuple) else (found,):
        if not isinstance(one, int | float) or isinstance(one, bool):
            continue
        if math.isinf(one):
            raise ConfigError(
                f"{origin}: {key} is {_show(found)}, expected a finite number, for example "
                f"`{written}{example}`"
            )
        if one not in allowed:
            raise ConfigError(f"{origin}: {key} is {_show(found)}, expected {allowed}")
    return found


def unknown(key: object, keys: Iterable[str], others: Iterable[str] = ()) -> str:
    """Says that a key is none, and which one is meant."""
    known = sorted({*keys, *others})
    near = meant(str(key), known) or difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(sorted(keys))}"
    return f"unknown key {key}; {hint}"


def _split(assignment: str) -> tuple[str, str]:
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"argument {assignment!r}: expected key=value, for example seed=1")
    return key.strip(), value


def parse(value: object, kind: Any) -> Any:
    """Parses a value as one of a kind. Raises: ValueError, ArithmeticError: it is not of it."""
    kind, optional = _without_none(kind)
    if optional and (value is None or str(value).strip().lower() in ("none", "null")):
        return None
    if get_origin(kind) is tuple:
        return tuple(parse(item, get_args(kind)[0]) for item in _items(value))
    if _haskeys_of(kind):
        return _nested(kind, value)
    return _PARSERS[kind](value)


def _items(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, str):
        text = value.strip()
        if (text[:1], text[-1:]) in (("[", "]"), ("(", ")")):
            text = text[1:-1]
        text = text.strip().removesuffix(",")  # "64," as Python writes a tuple of one
        return [item.strip() for item in text.split(",")] if text else []
    return [value]


def _parse_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    if isinstance(value, int):
        return value
    number = Decimal(value)  # not float: exact beyond 2**53; takes "1e6" and "500_000"
    if not number.is_finite() or number.adjusted() > _LARGEST_EXPONENT or number % 1 != 0:
        raise ValueError(value)
    return int(number)


def _parse_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    number = float(value)
    if math.isnan(number):
        raise ValueError(value)
    return number


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(value)


def _parse_str(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:  # paths and names cannot contain NUL
        raise ValueError(value)
    return value


_PARSERS: Mapping[Any, Any] = {
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    str: _parse_str,
}
_EXAMPLES: Mapping[Any, str] = {int: "64", float: "0.5", bool: "true", str: "text"}


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Returns X and True for `X | None`, and the kind itself and False for anything else."""
    if get_origin(kind) in (Union, types.UnionType):
        rest = [part for part in get_args(kind) if part is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return kind, False


def _name(kind: Any) -> str:
    kind, optional = _without_none(kind)
    is_tuple = get_origin(kind) is tuple
    name = f"list of {get_args(kind)[0].__name__}" if is_tuple else kind.__name__
    return f"{name} or none" if optional else name


def _example(kind: Any, default: object) -> str:
    if default not in (None, dataclasses.MISSING, "", ()):
        return _show(default)
    kind, _ = _without_none(kind)
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if _haskeys_of(element):
            return "[{" + ", ".join(f"{f.name}: ..." for f in _fields(element)) + "}]"
        return ",".join([_EXAMPLES[element]] * 2)
    return _EXAMPLES[kind]


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(_show(item) for item in value) or "[]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _default(field: dataclasses.Field) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
