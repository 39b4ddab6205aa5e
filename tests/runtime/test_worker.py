"""A worker's guarantees at an iteration boundary."""

import dataclasses
import socket
import sys
import threading

import numpy as np
import pytest

from mindspore_rl import train
from mindspore_rl.communication.link import Link
from mindspore_rl.jobs import registry
from mindspore_rl.rl.parameters import named_parameters
from mindspore_rl.runtime import checkpoint, replay_segments
from mindspore_rl.runtime.coordinator.metrics_file import METRICS_FILE, read_lines
from mindspore_rl.runtime.rank import worker
from mindspore_rl.runtime.rank.messenger import CHECKPOINT, CONTINUE
from mindspore_rl.runtime.rank.rank import Rank
from tests.compiler import inproc
from tests.compiler.inproc import PROGRAMS, request
from tests.environments import still
from tests.tiers import quick


def run(job, folder):
    return inproc.run(job, folder)[0]


def test_all_ranks_start_from_the_same_parameters(tmp_path, monkeypatch):
    started = {}

    class Spy(worker.FragmentRuntime):
        def save(self):
            if self.trainer is not None and self.rank.iteration == 0:
                named = named_parameters(self.trainer, "all")
                started[self.rank.number] = {name: p.asnumpy().copy() for name, p in named}
            super().save()

    monkeypatch.setattr(worker, "FragmentRuntime", Spy)
    plan = run(request(PROGRAMS / "random_start.py", str(PROGRAMS / "crossed.py"), 1), tmp_path)
    assert sorted(started) == list(range(plan.num_ranks)) == [0, 1, 2, 3]
    files = [str(getattr(module, "__file__", "")) for module in sys.modules.values()]
    left = [file for file in files if file.startswith(str(tmp_path / "fragments"))]
    assert left == [], "whoever reads the sources of all modules finds them when they are gone"
    for name, value in started[0].items():
        assert np.any(value) or "bias" in name or "moment" in name
        for rank in (1, 2, 3):
            assert np.array_equal(started[rank][name], value), name


@pytest.mark.slow
def test_what_the_loop_carries_of_all_environments_survives_those_without_state(tmp_path):
    """`drift` counts iterations; the environment has no state, so observations start anew."""
    source = (PROGRAMS / "two_phase.py").read_text()
    algorithm = tmp_path / "drift.py"
    before = "        for _ in msrl.iterations():\n"
    assert source.count(before) == 1
    body = source.replace(before, f"        drift = 0.0\n{before}            drift = drift + 1.0\n")
    head, report, tail = body.rpartition("msrl.report(")
    assert report, source
    algorithm.write_text(f"{head}msrl.report({{'drift': drift}})\n            msrl.report({tail}")
    job = request(algorithm, "SingleLearnerCoarse", 1, env=f"{still.__file__}:Still")
    plan = run(job, tmp_path / "first")
    newest = checkpoint.list_checkpoints(tmp_path / "first" / checkpoint.FOLDER)[-1]
    arrays, _ = checkpoint.load(newest)
    assert arrays["variables/drift"] == plan.num_iterations
    assert not any(name.startswith("environment/") for name in arrays)
    run(dataclasses.replace(job, resume=str(newest), num_iterations=3), tmp_path / "second")
    newest = checkpoint.list_checkpoints(tmp_path / "second" / checkpoint.FOLDER)[-1]
    assert checkpoint.load(newest)[0]["variables/drift"] == 3.0


def test_an_error_of_mindspore_is_told_in_one_line():
    rule = "-" * 52
    text = f"\n{rule}\n- Cuda error:\n{rule}\nThe cudaMalloc[2], out of memory\n\n{rule}\n"
    ours, theirs = map(Link, socket.socketpair())
    try:
        raise RuntimeError(f"{text}- C++ Call Stack: (For developers)\n{rule}\nsome.cc:12 Run")
    except RuntimeError as error:
        worker._report(theirs, 3, error)
    message = ours.poll(1.0)
    assert message["message"] == "RuntimeError: Cuda error: The cudaMalloc[2], out of memory"
    assert (message["rank"], message["stage"], message["mistake"]) == (3, "starting", False)
    assert "some.cc:12" in message["traceback"]
    ours.close()
    theirs.close()


def test_an_endless_error_shows_how_it_begins_and_ends():
    ours, theirs = map(Link, socket.socketpair())
    try:
        raise RuntimeError("it began" + "x" * 50_000_000 + "and ended")
    except RuntimeError as error:
        worker._report(theirs, 3, error)
    message = ours.poll(1.0)
    for text in (message["message"], message["traceback"]):
        assert len(text) < 30_000
        assert text.endswith(("and ended", "and ended\n"))
    assert message["message"].startswith("RuntimeError: it began")
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("policy", "schedule"),
    quick([("SingleLearnerCoarse", None), ("Central", "order=asynchronous")], 0),
)
def test_the_metrics_of_a_checkpoint_are_in_their_file_before_it(
    policy, schedule, tmp_path, monkeypatch
):
    save, found = checkpoint.save, []

    def look(folder, iteration, *more):
        lines = list(read_lines(folder.parent / METRICS_FILE))
        found.append((iteration, lines[-1]["iteration"] if lines else 0))
        return save(folder, iteration, *more)

    monkeypatch.setattr(checkpoint, "save", look)
    words = {"policy": policy, "schedule": schedule, "total_steps": 48, "workers": 2}
    config = {"num_envs": 2, "num_steps": 8}
    train("a2c", config=config, backend="inproc", quiet=True, run_dir=tmp_path / "run", **words)
    assert found == [(0, 0), (3, 3)]


def test_a_job_goes_on_while_the_disk_takes_a_checkpoint(tmp_path, monkeypatch):
    """The segments of an iteration are not durable before the next one has ended."""
    ended, kept, keep = threading.Event(), [], replay_segments.keep
    asked = iter([CHECKPOINT])

    class Disk(worker.FragmentRuntime):
        def _end_iteration(self):
            super()._end_iteration()
            if self.rank.iteration == 2:
                ended.set()

    def slow(folder, name):
        kept.append(ended.wait(30))
        keep(folder, name)

    def command(rank):
        return next(asked, CONTINUE) if rank.iteration == 1 else CONTINUE

    monkeypatch.setattr(worker, "FragmentRuntime", Disk)
    monkeypatch.setattr(replay_segments, "keep", slow)
    monkeypatch.setattr(Rank, "poll_command", command)
    job = request(
        registry.find_algorithm("dqn"), "MultipleLearners", 2, num_envs=4, num_steps=12, updates=1,
        replay_size=400, batch_size=4,
    )  # fmt: skip
    run(dataclasses.replace(job, num_iterations=4), tmp_path)
    first, *_, last = checkpoint.list_checkpoints(tmp_path / checkpoint.FOLDER)[1:]
    assert all(kept)
    assert len(kept) >= 4
    for path in (first, last):
        arrays, meta = checkpoint.load(path)
        assert meta["iteration"] == (1 if path == first else 4)
        assert np.count_nonzero(arrays["replay/0"].any((1, 2))) == 12 * meta["iteration"]
