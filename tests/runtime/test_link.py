"""What a worker tells its coordinator, and when."""

import socket
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


def test_what_can_wait_does_not_wait_for_long(ends, monkeypatch):
    sender, receiver = ends
    monkeypatch.setattr(module, "TOGETHER_S", 0.01)
    for iteration in range(3):
        sender.send_soon("iteration", iteration=iteration)
        time.sleep(0.02)
        assert [m["iteration"] for m in received(receiver)] == [iteration]
