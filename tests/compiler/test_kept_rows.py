"""Kept records, compared with a list that drops its oldest entries."""

import pytest

from mindspore_rl.compiler.frontend.replay_rows import inserted, place_kept, position
from mindspore_rl.compiler.ir.ir import Loop, Op, Where
from mindspore_rl.errors import ProgramError

HERE = Where("program.py", 7, "msrl.replay_insert(obs, keep=70)")
CAPACITY = 70


def _op(name):
    """Makes an operation; `w3` draws windows of 3 records."""
    kind = {"i": "replay_keep", "s": "replay_draw", "w": "replay_draw", "g": "glue"}[name[0]]
    steps = int(name[1:]) if name[0] == "w" else 0
    attrs = {
        "replay_keep": (("capacity", CAPACITY),),
        "replay_draw": (
            ("per_env", 1),
            ("capacity", CAPACITY),
            ("by", "stratified"),
            ("steps", steps),
        ),
    }.get(kind, ())
    return Op(name, kind, (), (), ("$replay",), HERE, attrs=attrs)


def _items(parts, depth=0):
    """Makes a body from names and `(count, parts...)`; the outermost loop is over iterations."""
    found = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            found.append(_op(part))
        else:
            kind, index = ("range", f"v{depth}_{number}") if depth else ("iterations", "it")
            body = _items(part[1:], depth + 1)
            count = part[0] if depth else None
            found.append(Loop(f"{kind}{depth}#{number}", kind, index, count, body, HERE))
    return tuple(found)


def _run(items, turns, act):
    for item in items:
        if isinstance(item, Loop):
            for turn in range(item.count or 5):
                _run(item.body, {**turns, item.index: turn}, act)
        else:
            act(item, turns)


@pytest.mark.parametrize(
    "parts",
    [
        ("i1", "s1"),
        ((4, "i1"), "s1"),
        ((4, "i1"), (3, "s1")),
        ((4, "i1", "s1", "g", "i2"), "s2"),
        ((4, "g", (3, "i1", "s1")), "i2", "s2"),
        ("i1", (2, "s1", (3, "s2", "i2", (4, "i3", "s3")), "i4")),
    ],
    ids=str,
)
def test_what_is_kept_is_where_a_draw_looks_for_it(parts):
    body = place_kept(_items([(0, *parts)]))
    ever, ring, drawn = [], {}, 0

    def act(op, turns):
        nonlocal drawn
        if op.kind == "glue":
            return
        assert eval(inserted(op), {}, dict(turns)) == len(ever)
        if op.kind == "replay_keep":
            ring[eval(position(op), {}, dict(turns))] = len(ever)
            ever.append(op.name)
        else:
            drawn += 1
            filled = min(len(ever), CAPACITY)
            newest = sorted(range(len(ever))[-CAPACITY:])
            assert sorted(ring[row] for row in range(filled)) == newest

    _run(body, {}, act)
    assert drawn
    assert len(ever) > CAPACITY or len(parts) < 4


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("s1", (4, "i1")), "draws where nothing was inserted yet"),
        (((4, "s1", "i1"),), "draws where nothing was inserted yet"),
        (((4, "i1"), "w5"), "windows of 5 records where 4 of each environment were inserted"),
        (((4, "i1", "w3"), "i2"), "windows of 3 records where 1 of each environment were"),
        (((71, "i1"), "s1"), "an iteration inserts 71 records .* room for 70 of each"),
    ],
    ids=str,
)
def test_draws_that_cannot_be_are_refused(parts, message):
    with pytest.raises(ProgramError, match=rf"program.py:7(.|\n)*{message}"):
        place_kept(_items([(0, *parts)]))


def test_as_many_records_as_a_window_has_are_enough():
    place_kept(_items([(0, (4, "i1"), "w4")]))


def test_outside_of_iterations_nothing_is_kept():
    with pytest.raises(ProgramError, match="outside msrl.iterations"):
        place_kept((_op("i1"),))
