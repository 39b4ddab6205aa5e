"""A run is resumed with other sizes: what continues, what starts anew, and what is refused."""

import dataclasses
import json
import shutil

import gym
import numpy as np
import pytest

import mindspore_rl
from mindspore_rl import train
from mindspore_rl.compiler.pipeline import schedules
from mindspore_rl.errors import CheckpointError, MsrlError
from mindspore_rl.plan.plan import ReplayPlan
from mindspore_rl.runtime import resuming
from mindspore_rl.runtime.checkpoint import list_checkpoints, load, save
from tests.compiler import inproc
from tests.compiler.programs import program_with

KEPT = {"num_envs": 2, "num_steps": 4, "n_step": 2, "learning_starts": 4, "batch_size": 12}
TINY = {"backend": "inproc", "quiet": True, "stop_return": float("nan")}


def newest(run):
    return load(list_checkpoints(run.path / "checkpoints")[-1])


@pytest.mark.parametrize(
    ("policy", "workers", "schedule"),
    [
        ("SingleLearnerCoarse", 1, None),
        pytest.param("GPUOnly", 2, None, marks=pytest.mark.slow),
        pytest.param("Central", 2, "order=asynchronous", marks=pytest.mark.slow),
    ],
)
def test_goes_on_with_other_sizes(policy, workers, schedule, tmp_path, capsys):
    """The second run does not learn, so its parameters are those of the first."""
    words = {"policy": policy, "workers": workers, "schedule": schedule, "total_steps": 96}
    config = {"num_envs": 2, "num_steps": 8}
    run = train("a2c", config=config, run_dir=tmp_path / "run", **words, **TINY)
    before, _ = newest(run)
    capsys.readouterr()
    sizes = {"num_envs": 6, "num_steps": 6}
    config = {**sizes, "learning_rate": 0.0, "total_steps": 36 * 4}
    further = train(resume=run, config=config, run_dir=tmp_path / "further", **TINY)
    after, meta = newest(further)
    assert [meta["iteration"], meta["env_steps"], meta["num_envs"]] == [4, 144, 6]
    assert [line["env_steps"] for line in further.metrics] == [108, 144]
    weights = [name for name in before if name.startswith("parameters/actor.")]
    assert weights and all(np.array_equal(before[name], after[name]) for name in weights)
    assert after["variables/obs"].shape[0] == 6
    err = capsys.readouterr().err
    counted = "iterations count on from 2, steps from 72"
    assert f"num_envs was 2 and is 6 now: all environments begin new episodes; {counted}" in err
    assert f"num_steps was 8 and is 6 now: {counted}" in err


@pytest.mark.slow
def test_other_steps_leave_episodes_as_they_are(tmp_path):
    config = {"num_envs": 2, "num_steps": 8}
    run = train("a2c", config=config, total_steps=16, run_dir=tmp_path / "run", **TINY)
    config |= {"num_steps": 1, "total_steps": 18}
    further = train(resume=run, config=config, run_dir=tmp_path / "further", **TINY)
    before, after = newest(run)[0]["episodes/length"], newest(further)[0]["episodes/length"]
    assert np.array_equal(before + 1, after)


@pytest.fixture(scope="module")
def two_iterations(tmp_path_factory):
    """A run of 32 steps."""
    folder = tmp_path_factory.mktemp("two") / "run"
    config = {"num_envs": 2, "num_steps": 8}
    return train("a2c", config=config, total_steps=32, run_dir=folder, **TINY)


def test_a_schedule_that_had_ended_begins_anew_and_says_so(two_iterations, tmp_path, capsys):
    further = train(resume=two_iterations, total_steps=48, run_dir=tmp_path / "further", **TINY)
    told = "total_steps was 32 and is 48 now, and schedules are of the whole: at 32 steps "
    assert told + "learning_rate goes from 0 to 0.000667" in capsys.readouterr().err
    assert np.isclose(further.metrics[-1]["values"]["learning_rate"], 0.002 / 3)


def test_schedules_are_what_follows_from_the_steps(tmp_path):
    learn = "t = 0.5 * msrl.env_steps()\ntarget = target * ops.clamp(t / 8.0, 0.0, 3.0)"
    job = inproc.request(program_with(tmp_path, learn=learn), "SingleLearnerCoarse", 1)
    assert schedules(job, 32) == {"t": 16.0}
    learn = "pace = ops.clamp(msrl.env_steps() / 64.0, 0.0, 1.0)\ntarget = target * pace"
    job = inproc.request(program_with(tmp_path, learn=learn), "SingleLearnerCoarse", 1)
    assert [schedules(job, at) for at in (32, 128)] == [{"pace": 0.5}, {"pace": 1.0}]


@pytest.mark.slow
def test_a_kept_replay_is_laid_out_by_environments(tmp_path):
    config = dict(KEPT)
    run = train("dqn", config=config, total_steps=16, run_dir=tmp_path / "run", **TINY)
    config["total_steps"] = 36
    for key, told in (
        ("num_envs", "num_envs, by which the replay is laid out, is 2 in it and 3 here"),
        ("num_steps", "num_steps, which has to divide the 8 steps in the replay, is 4 in it and 3"),
    ):
        with pytest.raises(MsrlError, match=told) as raised:
            train(resume=run, config={**config, key: 3}, run_dir=tmp_path / key, **TINY)
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_kept_replay_goes_on_with_steps_that_divide_it(tmp_path):
    config = dict(KEPT)
    run = train("dqn", config=config, total_steps=16, run_dir=tmp_path / "run", **TINY)
    config |= {"num_steps": 2, "total_steps": 24}
    further = train(resume=run, config=config, run_dir=tmp_path / "further", **TINY)
    kept, more = newest(run)[0]["replay/0"], newest(further)[0]["replay/0"]
    assert np.array_equal(more[:8], kept[:8])
    assert more[8:12].any(axis=(1, 2)).all()
    assert not more[12:].any()


@pytest.mark.slow
def test_a_kept_replay_goes_on_with_another_size_or_without_its_records(tmp_path, capsys):
    config = KEPT | {"replay_size": 24}
    run = train("dqn", config=config, total_steps=32, run_dir=tmp_path / "run", **TINY)
    kept = newest(run)[0]["replay/0"]  # records 4 to 15, in 12 rows
    config["total_steps"] = 40
    words = {"config": {**config, "replay_size": 64}, "run_dir": tmp_path / "larger", **TINY}
    found, _ = newest(train(resume=run, **words))
    assert np.array_equal(found["replay/0"][:12], np.roll(kept, -4, 0))
    assert found["counters/inserted"].tolist() == [16, 16]
    assert found["replay/0"][12:16].any(axis=(1, 2)).all()
    assert not found["replay/0"][16:].any()

    words = {"config": {**config, "priority": 0.6}, "run_dir": tmp_path / "weighted", **TINY}
    weighted = train(resume=run, **words)
    columns = len([name for name in newest(run)[0] if name.startswith("replay/")])
    weights = newest(weighted)[0][f"replay/{columns}"]
    assert (weights > 0).all()
    changed = config | {"priority": 0.0, "total_steps": 48}
    words = {"config": changed, "run_dir": tmp_path / "uniform", **TINY}
    assert f"replay/{columns}" not in newest(train(resume=weighted, **words))[0]

    words = {"config": config, "checkpoint_replay": False, **TINY}
    small = train(resume=run, run_dir=tmp_path / "small", **words)
    assert not [name for name in newest(small)[0] if "replay" in name or "inserted" in name]
    assert not (small.path / "replay").exists()
    words["config"] = {**config, "num_envs": 4, "total_steps": 64}
    capsys.readouterr()
    empty = train(resume=small, run_dir=tmp_path / "empty", **{**words, "checkpoint_replay": True})
    assert newest(empty)[0]["counters/inserted"].tolist() == [4 * (4 - 2)] * 4
    assert "the checkpoint has no replay: it begins empty" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on_in_gym(two_iterations, tmp_path):
    """Such a run does not store its environment's library: a plain id was gym's then."""
    path = shutil.copytree(two_iterations.path, tmp_path / "run")
    told = json.loads((path / "plan.json").read_text())
    assert told.pop("library") == "gymnasium"
    for message in told["messages"]:
        message["by_arrival"] = message.pop("asynchronous")
    assert told.pop("replays") == {}
    told |= {"records_per_env": 3, "records_kept": 9, "named_replays": {"model": [1, 2]}}
    (path / "plan.json").write_text(json.dumps(told))
    run = mindspore_rl.load(path)
    assert run.plan.replays == {"": ReplayPlan(3, 9), "model": ReplayPlan(1, 2)}
    arrays, meta = newest(run)
    assert meta.pop("library") == "gymnasium"
    save(run.path / "checkpoints", meta["iteration"], arrays, meta)

    assert run.plan.environment == "gym:CartPole-v1"
    assert isinstance(run.make_env(), gym.Env)
    assert len(run.evaluate(2)) == 2
    words = {"env": "CartPole-v1", "total_steps": 48, "run_dir": tmp_path / "further"}
    further = train(resume=run, **words, **TINY)  # with the id once more
    assert (further.plan.environment, further.plan.library) == ("gym:CartPole-v1", "gym")
    assert newest(further)[1]["env_steps"] == 48
    plan = dataclasses.replace(further.plan, environment="gymnasium:CartPole-v1")
    told = "environment is CartPole-v1 in it and gymnasium:Cart"
    with pytest.raises(CheckpointError, match=told):
        resuming.check_job(run.path, meta, plan)
