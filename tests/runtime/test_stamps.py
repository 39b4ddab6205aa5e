"""Stamps can be read while they are written."""

import socket
import subprocess
import sys
import time

from mindspore_rl.communication.link import Link
from mindspore_rl.runtime.heartbeat import Stamps, sent

WRITE = """
import sys, time
from pathlib import Path
from mindspore_rl.runtime.heartbeat import Stamps
stamps = Stamps(Path(sys.argv[1]), 1)
while True:
    for _ in range(1000):
        stamps.write(0, 5, 7)
"""


def test_a_reader_never_sees_a_row_half_written(tmp_path):
    stamps = Stamps(tmp_path, 1, create=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITE, tmp_path])
    try:
        while stamps.read(0).iteration == -1:
            assert writer.poll() is None
            time.sleep(0.01)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            for _ in range(1000):
                stamp = stamps.read(0)
                assert (stamp.iteration, stamp.stage) == (5, 7)
                assert stamp.time_s > 0
    finally:
        writer.kill()
        writer.wait()
        stamps.close()


def test_stamps_of_another_host_are_sent_with_their_age():
    ours, theirs = map(Link, socket.socketpair())
    stamps = Stamps(None, 2)
    stamps.write(1, 7, 3, age_s=5.0)
    with sent(stamps, 1, theirs):
        message = ours.poll(10.0)
    assert 5.0 <= message.pop("age_s") < 15.0
    assert message == {"kind": "stamp", "rank": 1, "iteration": 7, "stage": 3}
    for link in (ours, theirs):
        link.close()
    stamps.close()
