"""Evaluation while a job trains: its process, what it records, and that it cannot fail the job."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from mindspore_rl import train
from mindspore_rl.runtime.best_checkpoint import chosen
from mindspore_rl.runtime.coordinator import event_loop
from mindspore_rl.runtime.coordinator import run as coordinator
from mindspore_rl.runtime.coordinator.evaluator import FOLDER, Evaluation, Evaluator
from mindspore_rl.runtime.coordinator.interruption import Interruption
from mindspore_rl.runtime.coordinator.metrics import Metrics
from mindspore_rl.runtime.coordinator.metrics_file import EVALUATIONS_FILE, read_lines
from mindspore_rl.runtime.coordinator.state_machine import JobOptions
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.trained.curves import curve
from tests.runtime.test_coordinator import make_plan, run, run_dir  # noqa: F401  (a fixture)
from tests.runtime.test_metrics import scalars

PLAYS = """
import json, os, pathlib, sys, time
run_dir, folder, episodes, nice = sys.argv[1:]
while True:
    for path in pathlib.Path(folder).glob("checkpoint-*.npz"):
        made = path.with_suffix(".part")
        made.write_text(json.dumps({"iteration": 3, "env_steps": 96, "returns": [1.0, 3.0]}))
        made.rename(path.with_suffix(".json"))
    time.sleep(0.02)
"""
STARVES = """
import os, signal, sys
from mindspore_rl.trained import evaluator
def evaluated(run_dir, path, episodes):
    if sys.argv[4] != "0":
        signal.pause()
    return {"iteration": 3, "env_steps": 96, "returns": [float(os.nice(0))]}
evaluator.evaluated = evaluated
evaluator.main(*sys.argv[1:])
"""
DIES = "import time; time.sleep(0.2); raise SystemExit(3)"
HOLDS = """
import os, pathlib, sys, time
from mindspore_rl.runtime.coordinator.evaluator import Evaluator
run = pathlib.Path(sys.argv[1])
play = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1] + '/pid', 'w'), flush=True)"
play += "; time.sleep(99)"
with Evaluator(run, 1, (sys.executable, "-c", play)):
    while not (run / "pid").exists() or not (run / "pid").read_text():
        time.sleep(0.02)
    os.kill(os.getpid(), 9)
"""


def test_a_checkpoint_is_evaluated_after_it_was_removed(tmp_path):
    made = tmp_path / "checkpoint-00000003.npz"
    with Evaluator(tmp_path, 2, (sys.executable, "-c", PLAYS)) as evaluator:
        made.write_text("three")
        evaluator.give(made, 1.5)
        made.unlink()
        evaluator.wait(20.0)
        (done,) = evaluator.take()
        assert done == Evaluation(tmp_path / FOLDER / made.name, 3, 96, 1.5, [1.0, 3.0])
        assert (done.path.read_text(), evaluator.waiting) == ("three", 0)
        evaluator.forget(done)
    assert not (tmp_path / FOLDER).exists()


def test_its_end_is_told(tmp_path):
    with Evaluator(tmp_path, 2, (sys.executable, "-c", DIES)) as evaluator:
        assert evaluator.failed() == ""
        evaluator.wait(20.0)
        assert evaluator.failed() == (
            f"the evaluation has ended (exit status 3), see {tmp_path / 'evaluator.log'}"
        )


def test_a_job_at_its_end_does_not_wait_for_a_process_that_gets_no_core(tmp_path, monkeypatch):
    monkeypatch.setattr(event_loop, "HASTEN_AFTER_S", 0.0)
    made, command = tmp_path / "checkpoint-00000003.npz", (sys.executable, "-c", STARVES)
    made.write_text("three")
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        metrics = stack.enter_context(contextlib.closing(Metrics(tmp_path, 100, progress=False)))
        stamps = stack.enter_context(contextlib.closing(Stamps(tmp_path, 2, create=True)))
        evaluator = stack.enter_context(Evaluator(tmp_path, 1, command))
        job = make_plan(tmp_path), JobOptions(total_steps=100, eval_every=1, progress=False)
        watch = event_loop.Watch(*job, metrics, stamps, interruption, tmp_path, evaluator=evaluator)
        stack.callback(watch.close)
        evaluator.give(made, 1.5)
        watch.evaluate_rest()
    (line,) = read_lines(tmp_path / EVALUATIONS_FILE)
    assert line["values"]["eval/mean_return"] == os.nice(0)


@pytest.mark.kill
def test_it_dies_with_a_coordinator_that_is_killed(tmp_path):
    done = subprocess.run([sys.executable, "-c", HOLDS, tmp_path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 10.0
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_an_evaluation_is_a_line_and_scalars_at_the_steps_of_its_checkpoint(tmp_path):
    metrics = Metrics(tmp_path, 1000, progress=False)
    metrics.log(1, 100, {}, [])
    for steps in (90, 60):
        assert metrics.evaluated(Evaluation(tmp_path, steps // 30, steps, 0.5, [1.0, 3.0])) == 2.0
    metrics.close()
    line = {"iteration": 3, "env_steps": 90, "wall_s": 0.5}
    values = {"eval/mean_return": 2.0, "eval/std_return": 1.0}
    assert next(read_lines(tmp_path / EVALUATIONS_FILE)) == {**line, "values": values}
    assert {("eval/mean_return", 90, 2.0), ("eval/std_return", 60, 1.0)} < set(scalars(tmp_path))
    Metrics(tmp_path, 1000, progress=False, start_steps=70).close()
    assert [line["env_steps"] for line in read_lines(tmp_path / EVALUATIONS_FILE)] == [60]


@pytest.mark.multiprocess
def test_a_job_goes_on_without_it(run_dir, monkeypatch, capfd):  # noqa: F811
    started = functools.partial(Evaluator, command=(sys.executable, "-c", DIES))
    monkeypatch.setattr(coordinator, "Evaluator", started)
    outcome = run(make_plan(run_dir, num_iterations=60), run_dir, eval_every=1)
    assert (outcome.stopped, outcome.iterations) == ("steps", 60)
    assert "the job goes on without evaluations" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_is_evaluated_while_it_trains(tmp_path):
    trained = train(
        "a2c", env="probe:constant", total_steps=2048, eval_every=1024, eval_episodes=1,
        backend="inproc", stop_return=float("nan"), run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    found = sorted(trained.evaluations, key=lambda line: line["env_steps"])
    assert len(found) > 1 and found[-1]["env_steps"] == trained.env_steps
    assert chosen(trained.path / "checkpoints", "best").exists()
    drawn = curve(trained.path, "eval/mean_return", "env_steps")
    assert list(drawn.x) == [line["env_steps"] for line in found]
