"""Asynchronous jobs on real ranks: the bound of staleness, replays, resuming, and failures."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl import programs
from mindspore_rl.checking.replayed import replay
from mindspore_rl.cli.main import main
from mindspore_rl.compiler.pipeline import JobRequest
from mindspore_rl.errors import JobFailure
from mindspore_rl.jobs import registry
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.arrivals_log import ARRIVALS_FILE, read_log
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from tests.chaos import odd
from tests.multiprocess import theorem

pytestmark = [pytest.mark.multiprocess]
OPTIONS = JobOptions(progress=False, total_steps=0)


def request(env, workers, iterations, algorithm="a2c", policy="Central", config=(), **schedule):
    file = registry.find_algorithm(algorithm)
    policy = registry.load_policy(registry.find_policy(policy))
    policy = dataclasses.replace(policy, schedule=Schedule("asynchronous", **schedule))
    config = programs.trainer_class(file).Config(
        **{"env": env, "num_envs": 3, "num_steps": 4, "hidden": (8,), **dict(config)}
    )
    return JobRequest(file, policy, config, workers, num_iterations=iterations)


@pytest.fixture
def misbehaving(monkeypatch):
    """Makes environment 0 slow, or lets it hang or die."""

    def make(deed: str) -> str:
        monkeypatch.setenv(odd.VARIABLE, f"0 {0 if deed == 'slow' else 12} {deed}")
        return f"{odd.__file__}:Odd"

    return make


def run(job, folder, options=OPTIONS):
    plan, _ = theorem.prepare(job, folder)
    outcome = run_job(plan, folder, options)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return outcome, lines


@pytest.mark.slow
def test_the_bound_holds_with_a_slow_worker(tmp_path, misbehaving):
    """The other workers run ahead of it as far as the bound allows, then wait."""
    job = request(misbehaving("slow"), workers=3, iterations=20, staleness=3)
    outcome, lines = run(job, tmp_path / "run")
    assert max(line["values"]["staleness_max"] for line in lines) == 3
    assert all(line["values"]["staleness_mean"] <= 3 for line in lines)
    assert [line["iteration"] for line in lines] == list(range(1, 21))
    assert lines[-1]["env_steps"] == outcome.env_steps == 20 * 12
    arrays, meta = checkpoint.load(Path(outcome.checkpoint))
    slow, *others = arrays["counters/iterations"]
    assert slow + sum(others) == 60
    assert slow < max(others)  # on a busy machine another may be as slow
    assert (meta["iteration"], meta["env_steps"]) == (20, 240)
    traffic = json.loads((tmp_path / "run" / "communication.json").read_text())["program"]
    assert len(traffic) == 2
    for counted in traffic.values():
        assert counted["calls"] == counted["predicted_calls"] == 60
        assert counted["bytes"] == counted["predicted_bytes"] > 0


@pytest.mark.slow
def test_batches_of_whoever_is_ready_repeat_as_a_plain_loop(tmp_path, misbehaving, capsys):
    """The learner does not wait for a slow actor, and loses none of its rows."""
    job = request(misbehaving("slow"), 3, 12, policy="SingleLearnerCoarse", gather=2, staleness=4)
    outcome, lines = run(job, tmp_path / "run")
    assert max(line["values"]["staleness_max"] for line in lines) <= 4
    assert [line["iteration"] for line in lines] == list(range(1, 13))
    log = read_log(tmp_path / "run", load_plan(tmp_path / "run")).rows
    assert outcome.env_steps == len(log) * 2 * 4
    arrays, _ = checkpoint.load(Path(outcome.checkpoint))
    turns = [np.sort(log[log[:, :, 0] == worker][:, 1]) for worker in range(3)]
    assert [len(numbers) for numbers in turns] == arrays["counters/iterations"].tolist()
    assert all(np.array_equal(numbers, np.arange(len(numbers))) for numbers in turns)
    assert len(turns[0]) < max(len(turns[1]), len(turns[2]))
    assert main(["replay", str(tmp_path / "run")]) == 0
    assert "12 lines of metrics" in capsys.readouterr().out
    with (tmp_path / "run" / ARRIVALS_FILE).open("ab") as file:  # as if killed in the midst
        file.write(log[-1].tobytes()[:40])
    Path(outcome.checkpoint).unlink()  # the one before is of iteration 0
    lines[5]["values"]["entropy"] += 0.1
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    assert main(["replay", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().out
    assert "1 of 1 differ" in said
    assert "the first that differs: metric entropy of update 9; before it, all are within" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [("dqn", {"n_step": 2, "priority": 0.6, "updates": 2}), ("sac", {}), ("td3", {})],
)
def test_records_of_whoever_is_ready_repeat_as_a_plain_loop(algorithm, more, tmp_path, misbehaving):
    """A learner with a kept replay, whose lanes get as many records as their actors have made."""
    config = {"learning_starts": 0, "batch_size": 12, **more}
    env = misbehaving("slow") if algorithm == "dqn" else "Pendulum-v1"
    job = request(env, 3, 20, algorithm, "SingleLearnerCoarse", config, staleness=4)
    outcome, lines = run(job, tmp_path / "run")
    assert max(line["values"]["staleness_max"] for line in lines) <= 4
    arrays, _ = checkpoint.load(Path(outcome.checkpoint))
    inserted = arrays["counters/inserted"]
    assert inserted.tolist() == (4 * arrays["counters/iterations"]).tolist()
    assert inserted.sum() == outcome.env_steps == 20 * 12
    assert inserted[0] < inserted[1:].max() or env == "Pendulum-v1"
    assert main(["replay", str(tmp_path / "run")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_two_learners_repeat_as_a_plain_loop(algorithm, tmp_path, misbehaving):
    """Each learns from its own actors; both make every update together, and end after the same."""
    config = {"num_envs": 4}
    if algorithm == "dqn":
        config |= {"learning_starts": 0, "batch_size": 16, "n_step": 2, "priority": 0.6}
    policy = Path(__file__).parents[2] / "docs" / "examples" / "split_learners.py"
    job = request(misbehaving("slow"), 4, 12, algorithm, str(policy), config, staleness=4)
    options = dataclasses.replace(OPTIONS, checkpoint_every_s=0.0)
    outcome, lines = run(job, tmp_path / "run", options)
    assert [line["iteration"] for line in lines] == list(range(1, 13))
    assert max(line["values"]["staleness_max"] for line in lines) <= 4
    messages = 4 if algorithm == "dqn" else 2
    log = read_log(tmp_path / "run", load_plan(tmp_path / "run")).rows
    assert len(log) * messages * 4 == outcome.env_steps == 12 * 16
    assert (log[:, :, 0] // 2 == np.repeat([0, 1], messages // 2)).all()
    arrays, _ = checkpoint.load(Path(outcome.checkpoint))
    turns = [(log[:, :, 0] == worker).sum() for worker in range(4)]
    assert arrays["counters/iterations"].tolist() == turns
    traffic = json.loads((tmp_path / "run" / "communication.json").read_text())["program"]
    assert any(name.endswith("over learner") for name in traffic)
    for counted in traffic.values():
        assert counted["calls"] == counted["predicted_calls"]
        assert counted["bytes"] == counted["predicted_bytes"] > 0
    assert main(["replay", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_a_worker_that_is_ahead_waits_for_no_other_to_choose_its_cells(tmp_path):
    """Its lease blocks all others, so they cannot reach the cell that it is at."""
    job = request("CartPole-v1", workers=2, iterations=2, algorithm="ppo", staleness=0)
    outcome, _ = run(job, tmp_path / "run")
    assert outcome.env_steps == 2 * 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "workers", "gather"), [("Central", 2, {}), ("SingleLearnerCoarse", 1, {"gather": 2})]
)
def test_resumes_with_other_workers_and_synchronously(
    tmp_path, misbehaving, policy, workers, gather
):
    """Of gradients, and of batches, whose runs repeat as a plain loop from the checkpoint on."""
    job = request(misbehaving("slow"), 3, 6, policy=policy, **gather)
    outcome, _ = run(job, tmp_path / "run")
    before = checkpoint.load(Path(outcome.checkpoint))[0]["counters/iterations"]
    later = dataclasses.replace(job.policy, schedule=Schedule("asynchronous"))
    changes = {"policy": later, "num_iterations": 10, "resume": outcome.checkpoint}
    outcome, lines = run(dataclasses.replace(job, workers=workers, **changes), tmp_path / "later")
    assert [line["iteration"] for line in lines] == list(range(7, 11))
    arrays, meta = checkpoint.load(Path(outcome.checkpoint))
    assert (meta["iteration"], meta["env_steps"] >= 108) == (10, True)
    assert np.all(arrays["counters/iterations"] > before)
    if gather:
        found = replay(tmp_path / "later", lambda done, total: None)
        assert [one.wrong for one in found] == [""] * len(found)
        assert len(found) > 4, "a checkpoint and the metrics"
    last = dataclasses.replace(job.policy, schedule=Schedule())
    changes |= {"policy": last, "num_iterations": 12, "resume": outcome.checkpoint, "workers": 1}
    outcome, lines = run(dataclasses.replace(job, **changes), tmp_path / "last")
    assert [line["iteration"] for line in lines] == [11, 12]


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_with_the_edge_that_waits(tmp_path, misbehaving):
    job = dataclasses.replace(request(misbehaving("hang"), 2, 1000), timeout_s=8.0)
    plan, _ = theorem.prepare(job, tmp_path / "run")
    with pytest.raises(JobFailure) as failure:
        run_job(plan, tmp_path / "run", OPTIONS)
    message = str(failure.value)
    assert message.startswith("rank 0 (worker[0]), iteration 2, the environment: no progress")
    assert "edge parameters:update#1 server->worker) waits for rank 2 (server[0])" in message
    assert "Last good checkpoint" in message
