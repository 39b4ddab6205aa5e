"""Rows of records, compared with lists: of a trajectory buffer, and of a kept replay.

A buffer's list is emptied by the insertion after a sample; a kept replay's drops its oldest ones.
"""

import pytest

from mindspore_rl.compiler.frontend.replay_rows import inserted, place_kept, position
from mindspore_rl.compiler.frontend.trajectory_rows import place_rows
from mindspore_rl.compiler.ir.ir import Loop, Op, Where, walk
from mindspore_rl.errors import ProgramError

HERE = Where("program.py", 7, "msrl.replay_insert(obs)")
CAPACITY = 70
KEEP = {"capacity": CAPACITY}
DRAW = {"per_env": 1, "capacity": CAPACITY, "by": "stratified"}
BUFFER = {"i": ("replay_insert", {}), "s": ("replay_sample", {}), "g": ("glue", {})}
KEPT = {"i": ("replay_keep", KEEP), "s": ("replay_draw", DRAW), "g": ("glue", {})}
KEPT["w"] = KEPT["s"]


def _op(name, kinds):
    """Makes an operation; `w3` draws windows of 3 records."""
    kind, attrs = kinds[name[0]]
    if kind == "replay_draw":
        attrs = attrs | {"steps": int(name[1:]) if name[0] == "w" else 0}
    return Op(name, kind, (), (), ("$replay",), HERE, attrs=tuple(attrs.items()))


def _items(kinds, parts, depth=0):
    """Makes a body from names and `(count, parts...)`; the outermost loop is over iterations."""
    found = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            found.append(_op(part, kinds))
        else:
            kind, index = ("range", f"v{depth}_{number}") if depth else ("iterations", "it")
            count = part[0] if depth else None
            body = _items(kinds, part[1:], depth + 1)
            found.append(Loop(f"{kind}{depth}#{number}", kind, index, count, body, HERE))
    return tuple(found)


def _run(items, turns, act, iterations):
    for item in items:
        if isinstance(item, Loop):
            for turn in range(item.count or iterations):
                _run(item.body, {**turns, item.index: turn}, act, iterations)
        else:
            act(item, turns)


@pytest.mark.parametrize(
    "parts",
    [
        ("i1", "s1"),
        ((4, "i1"), "s1"),
        ((4, "g", (3, "i1", "g")), "s1"),
        ((2, (4, "i1"), "s1"), "g"),
        ((2, (3, (4, "i1"), "s1"), "g"), "g"),
        ((4, "i1"), "s1", (2, (4, "i2")), "s2"),
        ((4, "i1"), (3, "i2"), "i3", "s1", "s2"),
        ((4, "i1", "i2"), "s1"),
        ((4, "i1", (2, "i2"), "i3"), "i4", "s1", (2, "i5", "s2")),
        ((4, "i1"), (3, "s1"), "s2"),
        ((2, (3, (4, "i1", "i2"), "i3")), "s1"),
    ],
    ids=str,
)
def test_samples_hold_what_was_inserted_since_the_last(parts):
    body = place_rows(_items(BUFFER, [(0, *parts)]))
    rows, buffer, sampled, checked = [], {}, False, 0

    def act(op, turns):
        nonlocal rows, sampled, checked
        if op.kind == "replay_insert":
            rows, sampled = [] if sampled else rows, False
            rows.append((op.name, turns))
            buffer[eval(op.attr["index"], {}, dict(turns))] = rows[-1]
            assert {index for index in turns if index in op.attr["index"]} <= set(op.reads)
        elif op.kind == "replay_sample":
            sampled, checked = True, checked + 1
            assert [buffer[row] for row in range(op.attr["rows"])] == rows

    _run(body, {}, act, 2)
    assert checked


def test_indices_stay_readable():
    body = place_rows(_items(BUFFER, [(0, (4, "i1"), (2, (4, "i2")), "s1")]))
    indices = [op.attr["index"] for op, _ in walk(body) if op.kind == "replay_insert"]
    assert indices == ["v1_0", "4 + v1_1 * 4 + v2_0"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((4, "i1"),), "rows that no sample follows"),
        (((4, "i1"), "s1", "i2"), "rows that no sample follows"),
        (((2, "s1", (4, "i1")), "s2"), "rows that no sample follows"),
        (((4, "i1"), (2, (4, "i2"), "s1")), "the first turn of the loop around this sample"),
    ],
    ids=str,
)
def test_rows_that_differ_between_turns_are_refused(parts, message):
    with pytest.raises(ProgramError, match=rf"program.py:7(.|\n)*{message}"):
        place_rows(_items(BUFFER, [(0, *parts)]))


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
    body = place_kept(_items(KEPT, [(0, *parts)]))
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

    _run(body, {}, act, 5)
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
        place_kept(_items(KEPT, [(0, *parts)]))


def test_as_many_records_as_a_window_has_are_enough():
    place_kept(_items(KEPT, [(0, (4, "i1"), "w4")]))


def test_outside_of_iterations_nothing_is_kept():
    with pytest.raises(ProgramError, match=r"outside msrl.iterations\(\)(.|\n)*learning_starts"):
        place_kept((_op("i1", KEPT),))
