"""Messages from ranks (`communication/link.py`), validated before they are used.

A sender that has the job's token may still be faulty: an environment that writes into its rank's
link, a rank of another version.
"""

import math
from collections.abc import Callable, Collection
from typing import Any

LARGEST = 2**63 - 1
"""Largest value of stamps and counts, which are 64-bit integers."""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _number(value: Any) -> bool:
    return _whole(value) or isinstance(value, float)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


def _age(value: Any) -> bool:
    """Accepts None, or the seconds that a delayed report has waited."""
    return value is None or _seconds(value)


def _pair(first: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and first(value[0]) and _whole(value[1])


def _metrics(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


def _episode(value: Any) -> bool:
    """Accepts return and length, and numbers by name if there are any."""
    if isinstance(value, list) and len(value) == 3:
        return _pair(_number, value[:2]) and _metrics(value[2])
    return _pair(_number, value)


def _episodes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_episode, value))


def _traffic(value: Any) -> bool:
    return isinstance(value, dict) and all(_pair(_whole, counts) for counts in value.values())


FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "hello": {"pid": _whole, "proxy": _whole, "host": _text},
    "iteration": {
        "iteration": _whole,
        "env_steps": _whole,
        "episodes": _episodes,
        "metrics": _metrics,
        "age_s": _age,
    },
    "stamp": {"iteration": _whole, "stage": _whole, "age_s": _seconds},
    "saving": {},
    "checkpoint": {"iteration": _whole, "path": _text},
    "note": {"iteration": _whole, "note": _text},
    "error": {
        "iteration": _whole,
        "stage": _text,
        "message": _text,
        "traceback": _text,
        "mistake": _flag,
        "symptom": _flag,
        "echo": _flag,
    },
    "finished": {"iteration": _whole, "iterations_here": _whole, "traffic": _traffic},
}


def check(
    message: dict[str, Any],
    rank: int | None,
    taken: Collection[int],
    num_ranks: int,
    num_stages: int,
) -> None:
    """Validates a message.

    Args:
        message: of any kind.
        rank: of the connection that it came by; None: no hello so far.
        taken: ranks that already have connections.
        num_ranks: of the job.
        num_stages: number of stages that a rank can be in.

    Raises:
        ValueError: the message is invalid; says why.
    """
    kind, named = message["kind"], message.get("rank")
    if kind not in FIELDS:
        raise ValueError(f"a message of the kind {kind[:80]!r}; expected {', '.join(FIELDS)}")
    for field, right in FIELDS[kind].items():
        if not right(message.get(field)):
            got = repr(message[field])[:80] if field in message else "missing"
            raise ValueError(f"a message of the kind {kind!r} whose {field!r} is {got}")
    if kind == "hello":
        if not _whole(named) or named not in range(num_ranks):
            known = f"the job has ranks 0 to {num_ranks - 1}"
            raise ValueError(f"the hello of rank {str(named)[:80]}; {known}")
        if named in taken or rank is not None:
            raise ValueError(f"a second hello of rank {named}")
    elif rank is None:
        raise ValueError(f"a message of the kind {kind!r} before its hello")
    elif not _whole(named) or named != rank:
        raise ValueError(f"a message of the kind {kind!r} of rank {str(named)[:80]}")
    if kind == "stamp" and message["stage"] not in range(num_stages):
        raise ValueError(f"a stamp of the stage {message['stage']}")
