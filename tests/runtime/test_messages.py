"""The coordinator's check of messages from ranks."""

import pytest

from mindspore_rl.runtime.coordinator.messages import FIELDS, check

ITERATION = {"iteration": 1, "env_steps": 8, "episodes": [[1.5, 5]], "metrics": {"loss": 0.5}}
FAILURE: dict = {"iteration": 1, "stage": "s", "message": "m", "traceback": "t"}
FAILURE |= {"mistake": False, "symptom": False, "echo": False}
RIGHT = {
    "hello": {"pid": 1, "proxy": 2, "host": "here"},
    "iteration": {**ITERATION, "age_s": 0.1},
    "stamp": {"iteration": -1, "stage": 1, "age_s": 0.1},
    "saving": {},
    "checkpoint": {"iteration": 1, "path": "p"},
    "note": {"iteration": 1, "note": "n"},
    "error": FAILURE,
    "finished": {"iteration": 1, "iterations_here": 1, "traffic": {"obs": [1, 8]}},
}
WRONG = (None, True, "1", 2**63, -(10**400), [1], {"a": "b"}, {"a": [1]}, [[1.0]], [[1.0, "5"]])

JOB = 3, 10  # ranks and stages


def message(kind: str, **changed) -> dict:
    return {"kind": kind, "rank": 1, **RIGHT[kind], **changed}


def heard_as(kind: str) -> int | None:
    """Returns whose connection sent a message."""
    return None if kind == "hello" else 1


@pytest.mark.parametrize("kind", FIELDS)
def test_what_ranks_say_is_taken(kind):
    check(message(kind), heard_as(kind), [0], *JOB)


@pytest.mark.parametrize(("kind", "field"), [(kind, f) for kind in FIELDS for f in FIELDS[kind]])
def test_every_field_is_looked_at(kind, field):
    right, optional = RIGHT[kind][field], (kind, field) == ("iteration", "age_s")
    for value in WRONG:
        fits = type(value) is type(right) and isinstance(value, str | bool)
        if not fits and not (optional and value is None):
            with pytest.raises(ValueError, match=f"{kind!r} whose {field!r} is "):
                check(message(kind, **{field: value}), heard_as(kind), [0], *JOB)
    if not optional:
        lacking = {name: value for name, value in message(kind).items() if name != field}
        with pytest.raises(ValueError, match=f"{kind!r} whose {field!r} is missing"):
            check(lacking, heard_as(kind), [0], *JOB)


@pytest.mark.parametrize(
    ("kind", "changed", "rank", "told"),
    [
        ("hello", {"rank": 3}, None, "the hello of rank 3; the job has ranks 0 to 2"),
        ("hello", {"rank": -1}, None, "the hello of rank -1"),
        ("hello", {"rank": True}, None, "the hello of rank True"),
        ("hello", {"rank": 0}, None, "a second hello of rank 0"),
        ("hello", {}, 1, "a second hello of rank 1"),
        ("note", {}, None, "'note' before its hello"),
        ("note", {}, 0, "'note' of rank 1"),
        ("note", {"rank": None}, 1, "'note' of rank None"),
        ("note", {"rank": True}, 1, "'note' of rank True"),
        ("stamp", {"stage": 10**6}, 1, "a stamp of the stage 1000000"),
        ("stamp", {"stage": -1}, 1, "a stamp of the stage -1"),
        ("stamp", {"age_s": float("nan")}, 1, "'age_s' is nan"),
    ],
)
def test_what_no_rank_says_is_refused(kind, changed, rank, told):
    with pytest.raises(ValueError, match=told):
        check(message(kind, **changed), rank, [0], *JOB)


def test_kinds_that_no_rank_has_are_refused():
    with pytest.raises(ValueError, match="the kind 'stop'; expected hello, iteration, stamp"):
        check({"kind": "stop", "rank": 1}, 1, [], *JOB)
