"""`msrl board`: the page and its data, over real sockets."""

import contextlib
import dataclasses
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlencode

import pytest

from mindspore_rl.board import reading
from mindspore_rl.board.reading import POINTS, Board, Lines, message_times
from mindspore_rl.board.server import HERE, listen, server
from mindspore_rl.errors import JobFailure, MsrlError, install
from mindspore_rl.jobs import training
from mindspore_rl.performance.report import spent_by_rank
from mindspore_rl.performance.timeline import COMMUNICATION, WAITING, Part, Span, Timeline
from mindspore_rl.plan.plan import FragmentPlan, MessagePlan, load_plan, save_plan
from mindspore_rl.runtime.coordinator.metrics import Metrics

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")


@pytest.fixture
def folder(small_run, tmp_path):
    """The run, and one that differs in its seed and last loss."""
    folder = tmp_path / "runs"
    for name in ("one", "two"):
        shutil.copytree(small_run, folder / name)
    plan = load_plan(folder / "two")
    save_plan(dataclasses.replace(plan, config={**plan.config, "seed": 2}, seed=2), folder / "two")
    return folder


@contextlib.contextmanager
def served(folder):
    """A server of a folder in a thread; yields a function that requests a path of it."""
    serving = server(folder)
    with listen(0) as opened:
        port = opened.getsockname()[1]

        def request(path, words=(), *, method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.closing(connection):
                connection.request(method, f"{path}?{urlencode(words)}", headers=headers)
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()

        request.port = port
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield request
        finally:
            serving.should_exit = True
            thread.join()


def asked(request, path, words):
    status, _, content = request(path, words)
    assert status == 200, content
    return json.loads(content)


def test_the_page_needs_nothing_from_elsewhere(folder):
    with served(folder) as request:
        status, headers, page = request("/")
        assert status == 200
        assert "script-src 'self'" in headers["content-security-policy"]
        names = re.findall(r'src="([^"]+)"', page.decode())
        assert names == ["plotly.js", "board.js"]
        for name in names:
            status, headers, content = request(f"/{name}")
            assert status == 200
            assert headers["content-type"].startswith("text/javascript")
            assert len(content) > 1000
    own = page.decode() + (HERE / "board.js").read_text()
    assert not re.search(r"https?:|innerHTML|insertAdjacentHTML|document\.write", own)


def test_seeds_are_one_curve_with_a_band_and_a_run_that_grows_is_seen(folder):
    file = folder / "two" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    words = [("run", "one"), ("run", "two"), ("metric", "loss")]
    with served(folder) as request:
        before = asked(request, "/api/board", words)
        assert {run["run"] for run in before["runs"]} == {"one", "two"}
        assert {run["state"] for run in before["runs"]} == {"ended"}
        (group,) = before["groups"]
        assert group["label"] == "a2c on graph:CartPole-v1, GPUOnly"
        (drawn,) = before["curves"]["loss"]
        assert {"mean_return", "loss", "grad_norm"} <= set(before["metrics"])
        assert drawn["low"] == drawn["mean"] == drawn["high"]
        own = drawn["runs"][0]
        assert own["x"] == [line["env_steps"] for line in lines]

        since = [*words, ("since", before["version"])]
        assert asked(request, "/api/board", since) == {"version": before["version"]}
        with file.open("a") as grown:  # as a run writes: whole lines, and the begin of one
            lines[-1]["values"]["loss"] += 1.0
            later = {**lines[-1], "env_steps": lines[-1]["env_steps"] + 128}
            grown.write(json.dumps(lines[-1]) + "\n" + json.dumps(later) + '\n{"iter')
        after = asked(request, "/api/board", since)
        assert {r["env_steps"] for r in after["runs"]} == {640, 768}
        assert after["curves"]["loss"][0]["runs"][1]["x"][-1] == 768


def test_a_run_is_described(folder):
    (folder / "one" / "episode.mp4").write_bytes(bytes(100))
    (folder / "one" / "workers.log").write_text("[actor] <b>told</b>\n")
    with served(folder) as request:
        found = asked(request, "/api/run", {"run": "one"})
        assert "a2c under GPUOnly" in found["plan"]
        assert found["logs"] == {"workers.log": "[actor] <b>told</b>\n"}
        assert list(found["films"]) == ["episode.mp4"]
        since = {"run": "one", "since": found["version"]}
        assert asked(request, "/api/run", since) == {"version": found["version"]}
        status, headers, picture = request("/graph.svg", {"run": "one"})
        assert (status, headers["content-type"]) == (200, "image/svg+xml")
        assert "script-src" not in headers["content-security-policy"]
        assert b"msrl.env_reset()" in picture
        film = {"run": "one", "name": "episode.mp4"}
        status, headers, content = request("/film", film, Range="bytes=10-19")
        assert (status, headers["content-type"], len(content)) == (206, "video/mp4", 10)


def test_nothing_outside_the_folder_is_read(folder, small_run, tmp_path):
    (folder / "linked").symlink_to(small_run)
    (folder / "one" / "linked.mp4").symlink_to(small_run / "job.json")
    (tmp_path / "secret.mp4").write_text("secret")
    with served(folder) as request:
        runs = asked(request, "/api/board", ())["runs"]
        assert {run["run"] for run in runs} == {"one", "two"}
        for run in ("linked", "../board", "..", "", str(small_run), "one/../one"):
            for path in ("/api/run", "/graph.svg", "/film"):
                assert request(path, {"run": run, "name": "x"})[0] == 404
            found = asked(request, "/api/board", {"run": run, "metric": "loss"})
            assert not found["groups"]
        for name in ("linked.mp4", "../../secret.mp4", str(tmp_path / "secret.mp4"), "job.json"):
            assert request("/film", {"run": "one", "name": name})[0] == 404
        for path in ("/../one/job.json", "/%2e%2e/one/job.json", "/one/job.json", "//etc/passwd"):
            assert request(path)[0] == 404
        assert request("/api/board", method="POST")[0] == 405


def test_only_this_machines_names_are_answered(folder):
    with served(folder) as request:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1]"):
            assert request("/api/board", Host=host)[0] == 400
        assert request("/api/board", Host="localhost:1")[0] == 200
        status, headers, _ = request("/api/board", Origin="http://evil.example")
        assert status == 200
        assert "access-control-allow-origin" not in headers
        assert request("/api/board", {"over": "x"})[0] == 400


def test_how_a_run_stands(folder, monkeypatch):
    def states():
        return {one["run"]: (one["state"], one["why"]) for one in Board(folder).summaries()}

    assert states() == dict.fromkeys(("one", "two"), ("ended", "steps"))

    def fails(*_):
        raise JobFailure("rank 1 died")

    monkeypatch.setattr(training, "_run_with_restarts", fails)
    with pytest.raises(JobFailure):
        training._run(load_plan(folder / "one"), folder / "one", None, 0)
    assert states()["one"] == ("failed", "rank 1 died")
    assert Board(folder).detail("one")["error"] == "rank 1 died"

    (folder / "two" / "outcome.json").unlink()
    assert states()["two"][0] == "ended"  # by an earlier version
    (folder / "two" / "communication.json").unlink()
    assert states()["two"][0] == "stopped"
    metrics = Metrics(folder / "two", 1000, progress=False, start_steps=640)
    assert states()["two"] == ("running", "")
    metrics.close()
    assert states()["two"][0] == "stopped"
    (folder / "two" / "metrics.jsonl").unlink()
    assert states()["two"][0] == "starting"
    (folder / "two" / "plan.json").write_text("{}")
    assert states()["two"][0] == "unreadable"


def test_a_file_that_was_cut_is_read_from_its_start(folder):
    file = folder / "one" / "metrics.jsonl"
    text = file.read_text().splitlines(keepends=True)
    lines = Lines(file)
    lines.read()
    assert lines.points("loss", "iteration")[0].tolist() == [1, 2, 3, 4, 5]
    changed = {**json.loads(text[1]), "values": {"other": 1.5}, "mean_return": None}
    file.write_text("".join([text[0], json.dumps(changed) + "\n", *text[2:], *text[2:]]))
    lines.read()
    assert lines.points("loss", "iteration")[0].tolist() == [1, 3, 3, 4, 4, 5, 5]
    assert [points.tolist() for points in lines.points("other", "iteration")] == [[2], [1.5]]
    assert not len(lines.points("none", "iteration")[0])
    file.write_text(text[0] + "{}\n")
    with pytest.raises(MsrlError, match="line 2 is none"):
        lines.read()
    file.unlink()
    lines.read()
    assert not lines.columns


def test_long_curves_are_means_of_neighbours(folder):
    plan = load_plan(folder / "one")
    size = 2 * POINTS + 1
    x = reading.np.arange(size, dtype=float)
    thin = reading._thinned(reading.curve_of(plan, x, x**2))
    assert len(thin.x) == POINTS
    assert (thin.x[0], thin.y[0]) == (0.5, 0.5)
    assert thin.x[-1] == (size - 1 + size - 2 + size - 3) / 3


def test_mistakes_are_told_in_a_line(folder, tmp_path, refused, monkeypatch):
    def told(*words):
        (line,) = refused("board", *words).splitlines()
        return line

    assert "none is no folder; expected" in told(tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 cannot be used (Address already in use)" in (
            line := told(folder, "--port", port)
        )
        assert "--port" in line
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert told(folder).endswith(f"needs starlette: {install('board')}")


def test_ctrl_c_ends_it_quietly(folder):
    command = [sys.executable, "-m", "mindspore_rl.cli", "board", str(folder), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/api/board")
        assert connection.getresponse().status == 200  # and the connection stays open
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
        connection.close()
    assert (process.returncode, out, error) == (0, "", "")


def test_a_profile_gives_times_of_messages_and_ranks(folder):
    shares = (((0, 1), (1, 2)), ((0, 2),))
    fragments = tuple(
        FragmentPlan(name, f"{name}.py", first, own, (), (), (), True)
        for name, first, own in zip(("actor", "learner"), (0, 2), shares, strict=True)
    )
    sizes = {"transition": 4, "parameters": 1, "first": 0}
    messages = tuple(
        MessagePlan(f"{mark}#1", mark, "actor", "learner", (), "", (), "Gather", times)
        for mark, times in sizes.items()
    )
    plan = load_plan(folder / "one")
    plan = dataclasses.replace(plan, fragments=fragments, messages=messages, workers=2)
    send = [Part("actor", COMMUNICATION, f"message {mark}") for mark in sizes]
    ranks = [
        [Span(0, 4_000_000, send[0]), Span(4_000_000, 10_000_000, Part("actor", "compute", "act"))],
        [Span(0, 2_000_000, send[0]), Span(2_000_000, 10_000_000, send[2])],
        [Span(0, 10_000_000, Part("learner", WAITING, "waits for actor: message transition"))],
    ]
    profile = Timeline(plan, 0, 10_000_000, 2, ranks)
    assert message_times(profile) == {"transition#1": 2.0}
    assert message_times(None) == {}
    assert list(spent_by_rank(profile)[0].values()) == [2.0, 3.0]
