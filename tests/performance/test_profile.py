"""Profiles: the recorded spans of ranks, and the reports made from them."""

import json
import threading
import time

import numpy as np
import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.communication.inproc import InprocHub
from mindspore_rl.compiler.analysis import infer
from mindspore_rl.performance import critical_path, report
from mindspore_rl.performance.chrome_trace import TRACE_FILE
from mindspore_rl.performance.timeline import COMMUNICATION, WAITING, Part, Span, Timeline, load
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.plan.traffic import predict
from mindspore_rl.runtime import profile_recorder
from mindspore_rl.runtime.profile_recorder import FOLDER, ITERATION, RECEIVE, SEND, WARM_UP

ITERATIONS = 3


def _part(name, kind="compute"):
    return Part(name, kind, kind)


def _two_ranks():
    """An actor of 10 and a learner of 5; both wait for each other, and a message takes 1."""
    act, send = _part("actor"), _part("actor", COMMUNICATION)
    learn, take = _part("learner"), _part("learner", COMMUNICATION)
    idle, other_idle = _part("actor", WAITING), _part("learner", WAITING)
    actor = [
        Span(0, 10, act), Span(10, 10, send), Span(10, 16, idle, ((1, 2),)),
        Span(16, 17, send, ((1, 2),)), Span(17, 27, act), Span(27, 27, send),
        Span(27, 33, idle, ((1, 5),)), Span(33, 34, send, ((1, 5),)),
    ]  # fmt: skip
    learner = [
        Span(0, 10, other_idle, ((0, 1),)),
        Span(10, 11, take, ((0, 1),)),
        Span(11, 16, learn),
        Span(16, 27, other_idle, ((0, 5),)),
        Span(27, 28, take, ((0, 5),)),
        Span(28, 33, learn),
        Span(33, 33, take),
    ]
    return Timeline(None, 0, 34, 2, [actor, learner])


def test_the_critical_path_leads_from_rank_to_rank():
    path = critical_path.critical_path(_two_ranks())
    assert path == {
        _part("actor"): 20,
        _part("learner"): 10,
        _part("actor", COMMUNICATION): 2,
        _part("learner", COMMUNICATION): 2,
    }


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (None, 34),
        (_part("actor"), 14),
        (_part("learner"), 24),
        (_part("learner", COMMUNICATION), 32),
        (_part("nobody"), 34),
    ],
)
def test_without_a_part_waits_are_as_long_as_they_must(free, expected):
    assert critical_path.length(_two_ranks(), free) == expected


def test_a_rank_that_is_woken_goes_on_before_the_call_of_its_sender_has_ended():
    timeline, send = _two_ranks(), _part("actor", COMMUNICATION)
    take = _part("learner", COMMUNICATION)
    actor, learner = timeline.spans
    actor[1], actor[2] = Span(10, 13, send), Span(13, 16, actor[2].part, actor[2].causes)
    learner[0] = Span(0, 11, learner[0].part, learner[0].causes)
    learner[1] = Span(11, 11, take, learner[1].causes)
    assert critical_path.length(timeline) == 34
    assert critical_path.length(timeline, _part("actor")) == 14
    path = critical_path.critical_path(timeline)
    assert sum(path.values()) == 34
    assert sum(took for part, took in path.items() if part.kind == WAITING) == 0


def test_who_seem_to_wait_for_each_other_are_not_waited_for_for_ever():
    part = _part("actor", WAITING)
    timeline = _two_ranks()
    timeline.spans[0][2] = Span(10, 16, part, ((1, 6),))  # the learner's last
    assert critical_path.length(timeline) >= 34
    assert sum(critical_path.critical_path(timeline).values()) == 34


def test_the_clocks_of_ranks_are_compared(monkeypatch):
    """Two threads with clocks five seconds apart."""
    ahead_ns, found = 5_000_000_000, {}
    own = threading.local()
    clock = lambda: time.monotonic_ns() + getattr(own, "ahead_ns", 0)  # noqa: E731
    monkeypatch.setattr(profile_recorder.time, "perf_counter_ns", clock)
    hub = InprocHub(2)

    def run(rank):
        own.ahead_ns = rank * ahead_ns
        with hub.baton:
            found[rank] = profile_recorder.clock_difference(hub.communicator(rank), 2, lambda: None)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == 0
    assert found[1] == pytest.approx(-ahead_ns, abs=ahead_ns / 10)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of real ranks."""
    folder = tmp_path_factory.mktemp("profiled") / "run"
    steps = 8 * 16 * (WARM_UP + ITERATIONS + 1)
    words = ["train", "a2c", "--policy", "SingleLearnerCoarse", "--workers", "2", "num_steps=16"]
    words += ["--total-steps", str(steps), "--stop-return", "nan", "--run-dir", str(folder)]
    assert cli.main([*words, "--quiet", "--profile", str(ITERATIONS)]) == 0
    return folder


@pytest.mark.multiprocess
def test_every_message_of_a_real_run_is_in_its_profile(run_dir):
    plan, timeline = load_plan(run_dir), load(run_dir)
    assert timeline.iterations == ITERATIONS
    calls = {SEND: 0, RECEIVE: 0}
    for rank in range(plan.num_ranks):
        events = np.load(run_dir / FOLDER / f"{rank:04d}.npz")["events"]
        marks = events["begin"][events["kind"] == ITERATION]
        inside = (events["begin"] >= marks[0]) & (events["begin"] < marks[ITERATIONS])
        for kind in calls:
            calls[kind] += (inside & (events["kind"] == kind) & (events["what"] > 2)).sum()
    expected = ITERATIONS * sum(traffic.calls for traffic in predict(plan) if traffic.each)
    assert calls == {SEND: expected, RECEIVE: expected}
    for spans in timeline.spans:
        assert spans[0].begin <= timeline.begin < timeline.end <= spans[-1].end
        for one, following in zip(spans, spans[1:], strict=False):
            assert one.end == following.begin


@pytest.mark.multiprocess
def test_parts_of_a_real_run_add_up(run_dir, capsys):
    timeline = load(run_dir)
    times = report.spent(timeline)
    for name in ("actor", "learner"):
        whole = sum(took for part, took in times.items() if part.fragment == name)
        assert whole == pytest.approx(timeline.iteration_ms, rel=0.02)
    path = critical_path.critical_path(timeline)
    total = sum(path.values())
    assert total == pytest.approx(timeline.end - timeline.begin, rel=0.05)
    assert sum(took for part, took in path.items() if part.kind == WAITING) < 0.2 * total
    base = max(spans[-1].end for spans in timeline.spans)
    base -= min(spans[0].begin for spans in timeline.spans)
    assert critical_path.length(timeline) == pytest.approx(base, rel=0.02)
    assert all(critical_path.length(timeline, part) <= base * 1.02 for part in times)
    assert cli.main(["profile", str(run_dir)]) == 0
    out = capsys.readouterr().out
    # Who waits for whom is of the machine: on a busy one parameters are there before their actor.
    for words in ("the environment", "cell act", "cell learn", "message parameters", "waits for "):
        assert words in out
    events = json.loads((run_dir / FOLDER / TRACE_FILE).read_text())["traceEvents"]
    flows = {kind: {e["id"]: e for e in events if e["ph"] == kind} for kind in "sf"}
    assert flows["s"].keys() == flows["f"].keys() != set()
    for one, end in flows["s"].items():
        assert end["ts"] <= flows["f"][one]["ts"]
        assert end["tid"] != flows["f"][one]["tid"]


@pytest.mark.multiprocess
def test_a_profile_that_lacks_a_rank_is_told(run_dir, tmp_path, refused):
    (tmp_path / "plan.json").write_text((run_dir / "plan.json").read_text())
    assert "has no profile: train with --profile" in refused("profile", tmp_path)
    (tmp_path / FOLDER).mkdir()
    assert "0000.npz cannot be read" in refused("profile", tmp_path)
    assert "is not a run directory" in refused("profile", tmp_path / "none")


def test_a_run_that_is_too_short_is_told_before_its_program_is_examined(
    tmp_path, refused, monkeypatch
):
    monkeypatch.setattr(infer, "infer", None)
    words = ["--profile", "--total-steps", "2048", "--run-dir", str(tmp_path / "run")]
    assert "expected a number from 1 on, and more than 12 iterations" in refused(
        "train", "ppo", *words
    )
    assert not (tmp_path / "run").exists()
