"""The messages from a worker to its coordinator, and their times."""

import socket
import threading
import time

import pytest

from mindspore_rl.communication import link as module
from mindspore_rl.communication.link import Link


@pytest.fixture
def ends():
    one, other = map(Link, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_nothing_is_heard_of_one_without_the_token():
    for sent in (b"x" * 33, b"wrong\n", b"\n", b'{"kind": "hello"}\n' * 2, "\u20ac".encode() * 11):
        ours, theirs = socket.socketpair()
        link = Link(ours, "t" * 32)
        theirs.sendall(sent)
        assert link.poll(1.0) is None
        assert (link.known, link.closed) == (False, True)
        link.close()
        theirs.close()


def test_the_token_may_come_in_pieces_and_messages_with_it():
    ours, theirs = socket.socketpair()
    link = Link(ours, "t" * 32)
    for piece in (b"t" * 20, b"t" * 12 + b'\n{"kind": "a"}\n{"kind":', b'"b"}\n'):
        theirs.sendall(piece)
        if not piece.endswith(b"}\n"):
            assert link.poll(0.1) in (None, {"kind": "a"})
    assert link.poll(0.1) == {"kind": "b"}
    assert (link.known, link.closed) == (True, False)
    link.close()
    theirs.close()


@pytest.mark.parametrize("line", [b"[" * 100_000, b"7", b"{}", b'{"kind": 3}', b"\xff"])
def test_what_is_no_message_is_refused(line):
    ours, theirs = socket.socketpair()
    link = Link(ours)
    sender = threading.Thread(target=theirs.sendall, args=(line + b"\n",))
    sender.start()
    with pytest.raises(ValueError, match="no message"):
        while True:
            link.poll(0.1)
    sender.join()
    link.close()
    theirs.close()


def received(end):
    found = []
    while (message := end.poll(0.05)) is not None:
        found.append(message)
    return found


def test_what_can_wait_goes_together_with_its_age(ends, monkeypatch):
    sender, receiver = ends
    monkeypatch.setattr(module, "TOGETHER_S", 1000.0)
    sender.send("hello")
    assert [m["kind"] for m in received(receiver)] == ["hello"]
    sender.send_soon("iteration", iteration=1)
    time.sleep(0.05)
    sender.send_soon("iteration", iteration=2)
    assert received(receiver) == []
    sender.send("finished")
    first, second, last = received(receiver)
    assert (first["iteration"], second["iteration"], last) == (1, 2, {"kind": "finished"})
    assert first["age_s"] - second["age_s"] >= 0.05 and second["age_s"] >= 0.0
    sender.send_soon("iteration", iteration=3)
    sender.flush()
    sender.flush()
    assert [m["iteration"] for m in received(receiver)] == [3]


def test_what_can_wait_does_not_wait_for_long(ends, monkeypatch):
    sender, receiver = ends
    monkeypatch.setattr(module, "TOGETHER_S", 0.01)
    for iteration in range(3):
        sender.send_soon("iteration", iteration=iteration)
        time.sleep(0.02)
        assert [m["iteration"] for m in received(receiver)] == [iteration]


def test_what_came_before_nonsense_is_heard():
    near, far = socket.socketpair()
    with near, far:
        link = Link(near)
        far.sendall(b'{"kind": "hello"}\nnonsense\n{"kind": "note"}\n')
        assert link.poll(1.0) == {"kind": "hello"}
        with pytest.raises(ValueError, match="no message: b'nonsense'"):
            link.poll()
        assert link.poll() == {"kind": "note"}
        link.close()
