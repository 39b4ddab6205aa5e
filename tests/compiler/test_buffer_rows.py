"""Rows of the trajectory buffer, compared with a list that the insertion after a sample empties."""

import pytest

from mindspore_rl.compiler.frontend.trajectory_rows import place_rows
from mindspore_rl.compiler.ir.ir import Loop, Op, Where, walk
from mindspore_rl.errors import ProgramError

HERE = Where("program.py", 7, "msrl.replay_insert(obs)")


def _op(name):
    kind = {"i": "replay_insert", "s": "replay_sample", "g": "glue"}[name[0]]
    return Op(name, kind, (), (), ("$replay",), HERE)


def _items(parts, depth=0):
    """Makes a body from names and `(count, parts...)`; the outermost loop is over iterations."""
    found = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            found.append(_op(part))
        else:
            kind, index = ("range", f"v{depth}_{number}") if depth else ("iterations", "it")
            count = part[0] if depth else None
            body = _items(part[1:], depth + 1)
            found.append(Loop(f"{kind}{depth}#{number}", kind, index, count, body, HERE))
    return tuple(found)


def _run(items, turns, act):
    for item in items:
        if isinstance(item, Loop):
            for turn in range(item.count or 2):
                _run(item.body, {**turns, item.index: turn}, act)
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
    body = place_rows(_items([(0, *parts)]))
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

    _run(body, {}, act)
    assert checked


def test_indices_stay_readable():
    body = place_rows(_items([(0, (4, "i1"), (2, (4, "i2")), "s1")]))
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
        place_rows(_items([(0, *parts)]))
