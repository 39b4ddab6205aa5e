"""Asynchronous batches against the plain loop that the log of arrivals drives."""

import dataclasses
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl import programs
from mindspore_rl.checking.plain import draws_of
from mindspore_rl.checking.replayed import replay
from mindspore_rl.compiler.frontend.build import read
from mindspore_rl.compiler.pipeline import analyse, prepare
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError, PolicyError, ProgramError
from mindspore_rl.jobs import registry
from mindspore_rl.rl.parameters import named_parameters
from mindspore_rl.runtime import arrivals_log, checkpoint
from mindspore_rl.runtime.arrivals_log import Arrived, read_log
from mindspore_rl.runtime.rank import replay_checkpoint
from mindspore_rl.runtime.rank.leases import Leases
from mindspore_rl.runtime.rank.replay_checkpoint import ReplaySegments
from mindspore_rl.runtime.replayed import Names, ReplayedLoop
from tests.compiler import inproc
from tests.compiler.programs import program_with
from tests.compiler.test_arrival import SMALL
from tests.multiprocess import theorem
from tests.tiers import quick

LEARNERS = str(Path(__file__).parents[2] / "docs" / "examples" / "split_learners.py")
"""A policy with two learners."""
ASYNCHRONOUS = {"order": "asynchronous"}
RECORDS = {
    "replay_size": 60, "batch_size": 12, "learning_starts": 0, "num_steps": 4, "hidden": (8,),
}  # fmt: skip
FEW_UPDATES = RECORDS | {"priority": 0.6, "n_step": 2, "updates": 2}
SEQUENCES = {
    "replay_size": 60, "batch_size": 6, "learning_starts": 0, "num_steps": 4, "learnt_steps": 4,
    "burn_in": 2,
}  # fmt: skip


def request(
    algorithm,
    workers,
    num_envs,
    iterations=3,
    policy="SingleLearnerCoarse",
    config=None,
    **schedule,
):
    file, config = registry.find_algorithm(algorithm), config or SMALL[algorithm]
    config = {"num_envs": num_envs, "learning_rate": 0.02} | config
    job = inproc.request(file, policy, workers, {**ASYNCHRONOUS, **schedule}, **config)
    return dataclasses.replace(job, num_iterations=iterations)


def run(job, folder):
    """Runs a job in this process. Returns: its plan, and its last checkpoint with its arrays."""
    plan, last = inproc.run(job, folder)
    return plan, last, checkpoint.load(last)[0]


@pytest.fixture
def shuffled(monkeypatch):
    """Serves workers in a random order, as ranks of uneven speed are."""
    draw, first = random.Random(3), Leases._first
    monkeypatch.setattr(Leases, "_first", lambda self, w: first(self, draw.sample(w, len(w))))


@pytest.mark.parametrize(
    ("algorithm", "workers", "gather"),
    quick([("ppo", 3, 2), ("mappo", 2, 1), ("a2c", 3, 1), ("ppo", 2, 1)], 0),
)
def test_a_run_is_the_plain_loop_of_its_log(algorithm, workers, gather, tmp_path, shuffled):
    job = request(algorithm, workers, 6, gather=gather, staleness=3)
    plan, _, arrays = run(job, tmp_path)
    log = read_log(tmp_path, plan).rows
    otherwise = dataclasses.replace(plan, fragments=plan.fragments[::-1])  # the learner comes first
    assert plan.steps_per_update == otherwise.steps_per_update == gather * 6 // workers * 4
    assert len({tuple(batch[:, 0]) for batch in log}) > 1, "the order of arrival varies"
    assert far(plan, log, arrays) < 1e-6
    if algorithm == "ppo":  # which learns from the probabilities of actions
        log[-1, :, 2] = 0  # had acted with the initial parameters
        assert far(plan, log, arrays) > 1e-4


@pytest.mark.parametrize(("algorithm", "gather"), quick([("ppo", 1), ("a2c", 2), ("r2d2", 2)], 1))
def test_several_learners_are_the_plain_loop_of_their_log(algorithm, gather, tmp_path, shuffled):
    """Each learns from batches of its own actors, and both make the same updates."""
    config = SEQUENCES | {"batch_size": 8} if algorithm == "r2d2" else None
    own = {} if config else {"gather": gather}  # with a kept replay that of the loop: all
    job = request(algorithm, 4, 8, policy=LEARNERS, config=config, staleness=3, **own)
    plan, _, arrays = run(job, tmp_path)
    log = read_log(tmp_path, plan).rows
    assert plan.steps_per_update == 2 * gather * 2 * 4
    assert log.shape == (3 * 8 * 4 // plan.steps_per_update, 2 * gather, 3)
    own = log[:, :, 0] // 2
    assert (own == np.repeat([0, 1], gather)).all(), "a learner's actors are its own"
    assert (log[:, :, 0] % 2).any()
    stale = np.arange(len(log))[:, None] - log[:, :, 2]
    assert stale.min() == 0
    assert 0 < stale.max() <= 3
    assert far(plan, log, arrays) < 1e-6


@pytest.mark.parametrize(
    ("algorithm", "config"),
    quick([("dqn", FEW_UPDATES), ("dqn", {"n_step": 1}), ("sac", {}), ("td3", {})], 0),
)
def test_records_of_whoever_is_ready_are_those_of_the_log(
    algorithm, config, tmp_path, shuffled, monkeypatch
):
    """Fast workers have several records in a batch, so that lanes have different numbers.

    They are written before the checkpoint, which is the last one.
    """
    ahead, write = [], ReplaySegments.write_ahead
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 1)
    monkeypatch.setattr(replay_checkpoint, "SMALL_BYTES", 1)

    def write_ahead(side, inserted):
        write(side, inserted)
        side._rank.background.wait()
        ahead.append(len(side._ahead))

    monkeypatch.setattr(ReplaySegments, "write_ahead", write_ahead)
    job = request(algorithm, 3, 6, 12, config=RECORDS | config, staleness=6)
    plan, _, arrays = run(job, tmp_path)
    log = read_log(tmp_path, plan).rows
    assert any(len(set(batch[:, 0])) < 3 for batch in log), "a worker has several"
    inserted = arrays["counters/inserted"]
    assert len(set(inserted)) > 1
    assert sum(inserted) == 12 * 6 * plan.replays[""].per_iteration
    assert max(ahead) > 1
    assert far(plan, log, arrays) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("program", ["uniform", "distinct", "dqn"])
def test_lanes_of_different_lengths_resume_alike_under_any_policy(program, tmp_path, shuffled):
    """Also where each replica holds only its own lanes and all draw together."""
    if program == "dqn":
        job = request("dqn", 3, 6, 5, config=RECORDS | {"priority": 0.6, "n_step": 2})
    else:
        job = across(tmp_path, program, "SingleLearnerCoarse", 3, 6)
    _, last, arrays = run(job, tmp_path / "before")
    assert len(set(arrays["counters/inserted"])) > 1
    ends = []
    for name, workers in (("SingleLearnerCoarse", 2), ("MultipleLearners", 3)):
        policy = registry.load_policy(registry.find_policy(name))
        changes = {"policy": policy, "workers": workers, "num_iterations": 8, "resume": str(last)}
        ends.append(run(dataclasses.replace(job, **changes), tmp_path / name)[2])
    assert np.array_equal(*(end["counters/inserted"] for end in ends))
    for name in (name for name in ends[0] if name.startswith("parameters/")):
        np.testing.assert_allclose(*(end[name] for end in ends), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "config", "first", "then", "whole"),
    quick(
        [
            ("ppo", {}, {"workers": 3, "gather": 2}, {"workers": 2, "gather": 1}, True),
            ("dqn", FEW_UPDATES, {"workers": 3}, {"workers": 2}, True),
            ("dqn", FEW_UPDATES, {"workers": 2}, {"workers": 3}, False),
            ("r2d2", SEQUENCES, {"workers": 2}, {"workers": 3}, True),
        ],
        1,
    ),
)
def test_a_resumed_run_is_the_plain_loop_of_all_its_logs(
    algorithm, config, first, then, whole, tmp_path, shuffled
):
    """With other workers; from its beginning, or without that from the checkpoint on.

    Also where the checkpoint lacks the replay, with which it then begins anew.
    """
    config = config or SMALL[algorithm]
    job = request(algorithm, num_envs=6, config=config, iterations=4, **first)
    _, last, _ = run(dataclasses.replace(job, checkpoint_replay=whole), tmp_path / "before")
    job = request(algorithm, num_envs=6, config=config, iterations=8, staleness=4, **then)
    job = dataclasses.replace(job, resume=str(last))
    plan, _ = prepare(job, tmp_path / "later")
    arrivals_log.keep(tmp_path / "before", tmp_path / "later", checkpoint.look(last)["env_steps"])
    inproc._run(plan, tmp_path / "later")
    (tmp_path / "later" / "metrics.jsonl").touch()
    starts = arrivals_log.starts(tmp_path / "later")
    assert [log.env_steps for _, log in starts] == [0, plan.last_step // 2]
    for _ in range(2):
        (found,) = replay(tmp_path / "later", lambda done, total: None)
        assert found.iteration == sum(len(log.rows) for _, log in starts)
        assert found.far < 1e-2, found  # 1e-5 of an entry
        shutil.rmtree(tmp_path / "later" / "before", ignore_errors=True)
        starts = starts[1:]
    shutil.rmtree(tmp_path / "later" / checkpoint.FOLDER)
    with pytest.raises(MsrlError, match="nothing to compare: no checkpoint"):
        replay(tmp_path / "later", lambda done, total: None)
    last.unlink()
    with pytest.raises(MsrlError, match="was resumed from .*, which is gone"):
        replay(tmp_path / "later", lambda done, total: None)


def across(folder, by, policy, workers, num_envs):
    """A request for a job that draws from the records of all environments together."""
    insert = 'msrl.replay_insert(*msrl.boundary("transition", (obs, action, reward)))'
    keep = (insert, f"{insert[:-1]}, keep={10 * num_envs})")
    draw = ("msrl.replay_sample()", f'msrl.replay_sample(12, "{by}")')
    file = program_with(folder, (keep, draw))
    job = inproc.request(file, policy, workers, ASYNCHRONOUS, num_envs=num_envs, num_steps=4)
    return dataclasses.replace(job, num_iterations=5)


def replayed(plan, rows, begin=None):
    """Runs the plain loop of a start's log. Returns: the loop."""
    trainer = programs.load_trainer(plan.algorithm, plan.config, spec(plan.environment))
    program = read(trainer)
    names = Names(draws_of(program), program.draft.locals)
    steps = begin[1]["env_steps"] if begin else 0
    loop = ReplayedLoop(trainer, plan, Arrived(steps, rows), lambda steps: None, names, begin)
    loop.run()
    return loop


def far(plan, log, arrays, begin=None):
    """Returns the largest difference between a run's parameters and those of a log's plain loop."""
    named = named_parameters(replayed(plan, log, begin).trainer, "all")
    return max(np.abs(arrays[f"parameters/{name}"] - p.asnumpy()).max() for name, p in named)


def test_a_batch_of_all_workers_is_the_synchronous_batch(tmp_path):
    job = request("ppo", 2, 4, iterations=2, gather=2, staleness=0)
    reference = inproc.run_reference(job, tmp_path)
    _, last = inproc.run(job, tmp_path / "run")
    assert theorem.compare_states(last, reference.checkpoints[-1]) == []


@pytest.mark.parametrize(
    ("algorithm", "policy", "workers", "schedule", "reason"),
    [
        ("ppo", "SingleLearnerFine", 2, {}, "action carries rows of environments back"),
        ("ppo", "SingleLearnerCoarse", 3, {}, "ask for a multiple, num_envs=6"),
        ("ppo", "SingleLearnerCoarse", 2, {"gather": 3}, "2 replicas of actor for gather=3"),
        ("ppo", "SingleLearnerCoarse", 2, {"drop_stale": True}, "no row is ever dropped"),
        ("ppo", LEARNERS, 3, {}, "replicas of actor, and there are 3; ask for a mul.*workers=4"),
        ("ppo", LEARNERS, 4, {"gather": 3}, "2 replicas of actor for each learner for gather=3"),
        ("a2c", "Central", 2, {"gather": 2}, "worker sends none to server"),
    ],
)
def test_what_makes_no_batch_is_refused(algorithm, policy, workers, schedule, reason):
    job = request(algorithm, workers, 4, policy=policy, **schedule)
    with pytest.raises(PolicyError, match=f"{job.policy.name} cannot run {algorithm} .*{reason}"):
        analyse(job)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "kept",
            r"within an iteration .*\n.*kept.py:\d+: msrl.replay_ins.*\nlet one loop of .*Central",
        ),
        ("two_rollouts", r"apart, .*\n.*rollouts.py:\d+: .*\n.*rollouts.py:\d+: .*\nlet one loop"),
    ],
)
def test_a_program_that_sends_otherwise_is_refused_with_its_lines(program, told):
    """The way out that is told is one."""
    file = inproc.PROGRAMS / f"{program}.py"
    with pytest.raises(PolicyError, match=told):
        analyse(inproc.request(file, "SingleLearnerCoarse", 2, ASYNCHRONOUS))
    analyse(inproc.request(file, "Central", 2, ASYNCHRONOUS))


def test_a_value_that_would_return_to_actors_is_refused(tmp_path):
    reset, learn = "msrl.env_reset())", "msrl.report(msrl.agent_learn(batch))"
    returned = 'scale = msrl.boundary("transition", found["loss"])'
    changes = (
        ("import nn", "import float32, nn"),
        (reset, f"{reset}\n        scale = ops.ones((), float32)"),
        ("msrl.agent_act(obs)", "msrl.agent_act(obs * scale)"),
        (learn, f"found = msrl.agent_learn(batch)\n            {returned}"),
    )
    file = program_with(tmp_path, changes)
    job = inproc.request(file, "SingleLearnerCoarse", 2, ASYNCHRONOUS, num_envs=4, num_steps=4)
    with pytest.raises(PolicyError, match=r"`scale` back to actor, to which .*\n.*py:\d+: .*\nlet"):
        analyse(job)


LEVEL = """found = msrl.agent_learn(batch)
            level = 0.9 * level + found["loss"]
            msrl.report({"level": level})"""
SHUFFLED = """target = reward
        if msrl.mean(reward) > 0.5:
            for part in msrl.minibatches(2, (obs, action, reward)):
                grads, _ = msrl.gradient(self.loss, self.net, *part)
                msrl.update(self.apply, grads)
"""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            [
                ("env_reset())", "env_reset())\n        level = 0.0"),
                ("msrl.report(msrl.agent_learn(batch))", LEVEL),
            ],
            r"carry `level` .*\n .*0\.9 \* level.*\n.*let msrl.update put `level` into one",
        ),
        (
            [("target = reward\n", SHUFFLED)],
            r"carry `shuffles` .*\n .*for part in .*\n.*put the minibatches outside it",
        ),
    ],
)
def test_a_learner_that_would_carry_a_value_is_refused_with_its_line(changes, told, tmp_path):
    program = program_with(tmp_path, changes)
    job = inproc.request(program, "SingleLearnerCoarse", 2, ASYNCHRONOUS, num_envs=4, num_steps=4)
    with pytest.raises(PolicyError, match=told):
        prepare(job, tmp_path / "run")


@pytest.mark.parametrize(
    "before", quick(["for _ in msrl.iterations():", "for step in msrl.steps():"], 0)
)
def test_rows_made_of_numbers_are_refused_by_a_replay_with_their_line(before, tmp_path):
    """A job gives each actor its own; the plain loop of an actor cannot."""
    depth = 8 if "iterations" in before else 12
    made = "scale = ops.ones((self.config.num_envs,), float32)"
    changes = [
        ("import nn", "import float32, nn"),
        (before, f"{made}\n{' ' * depth}{before}"),
        ("(obs, action, reward))", "(obs, action, reward * scale))"),
    ]
    file = program_with(tmp_path, changes)
    job = inproc.request(file, "SingleLearnerCoarse", 2, ASYNCHRONOUS, num_envs=4, num_steps=4)
    run(dataclasses.replace(job, num_iterations=1), tmp_path / "run")
    with pytest.raises(ProgramError, match=r": scale = ops.ones.*\n.*make it of a value"):
        replay(tmp_path / "run", lambda done, total: None)


def test_a_learner_that_asks_for_the_numbers_of_changing_environments_is_refused(tmp_path):
    program = program_with(tmp_path, learn='target = reward * msrl.env_index().astype("float32")')
    job = inproc.request(program, "SingleLearnerCoarse", 2, ASYNCHRONOUS, num_envs=4, num_steps=4)
    with pytest.raises(PolicyError, match=r"asks for their numbers\n .*\nlet the rows of"):
        prepare(job, tmp_path / "run")
