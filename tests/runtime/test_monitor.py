"""What follows from what happens to a job: lists of events, no processes, sockets or clocks."""

import math

import pytest

from mindspore_rl.errors import JobFailure
from mindspore_rl.plan.plan import FragmentPlan, Plan
from mindspore_rl.runtime.coordinator.events import (
    Closed,
    Examine,
    Fail,
    Finish,
    GiveUp,
    Heard,
    Interrupted,
    Log,
    Logged,
    Note,
    Remains,
    Tell,
    Tick,
)
from mindspore_rl.runtime.coordinator.monitor import (
    GONE_S,
    LAST_WORDS_S,
    LAUNCH_S,
    MIN_EPISODES,
    JobOptions,
    Monitor,
    Stalled,
    Unreached,
)
from mindspore_rl.runtime.stamps import Stamp

CHECKPOINT_S, TIMEOUT_S, START_TIMEOUT_S = 20.0, 5.0, 60.0


class Job:
    """A monitor of a learner, the leader, and two actors, with a clock that is set by hand."""

    def __init__(self, here=False, stop_return=None, **fields):
        fragments = (
            FragmentPlan("learner", "learner.py", 0, ((0, 8),), (), ("learn",), ("learn",), True),
            FragmentPlan("actor", "actor.py", 1, ((0, 4), (4, 8)), (), (), (), False),
        )
        self.plan = Plan(fragments=fragments, timeout_s=TIMEOUT_S, **PLAN | fields)
        options = JobOptions(
            False,
            100,
            stop_return,
            checkpoint_every_s=CHECKPOINT_S,
            start_timeout_s=START_TIMEOUT_S,
        )
        self.now = 100.0
        self.monitor = Monitor(self.plan, options, self.now, here)
        self.stamps = {rank: Stamp(-1, 0, self.now) for rank in range(3)}
        self.orders = []

    def on(self, *events):
        """What follows from events of one instant."""
        found = [order for event in events for order in self.monitor.on(event, self.now)]
        self.orders += found
        return found

    def tick(self, after_s=0.2, awake=True, **processes):
        """What follows after a while, in which the ranks went on unless they are not `awake`."""
        self.now += after_s
        if awake:
            self.stamps = {r: Stamp(s.iteration, s.stage, self.now) for r, s in self.stamps.items()}
        return self.on(Tick(dict(self.stamps), **processes))

    def hello(self, *ranks):
        return self.on(*(Heard(rank, {"kind": "hello", "rank": rank}) for rank in ranks))

    def iteration(self, number, *ranks):
        found = []
        for rank in ranks or range(3):
            message = {"kind": "iteration", "rank": rank, "iteration": number, "metrics": {}}
            message |= {"env_steps": number * 8, "episodes": [(1.0, 5)] if rank else []}
            found += self.on(Heard(rank, message))
        return found

    def running(self):
        """All ranks have done an iteration."""
        self.hello(0, 1, 2)
        self.iteration(1)
        return self


PLAN = {
    "algorithm": {},
    "policy": "small",
    "config": {},
    "environment": "",
    "in_graph": False,
    "num_envs": 8,
    "num_steps": 1,
    "steps_per_env": 1,
    "num_iterations": 9,
    "seed": 1,
    "carried": {},
    "messages": (),
    "cells": "native",
}
DONE = {"kind": "finished", "iteration": 9, "iterations_here": 9, "traffic": {}}


def error(rank, text, mistake=False):
    return Heard(
        rank,
        {
            "kind": "error",
            "iteration": 3,
            "stage": "cell learn",
            "message": text,
            "traceback": "Traceback: somewhere",
            "mistake": mistake,
        },
    )


def test_a_line_is_logged_when_all_ranks_have_reported_it():
    job = Job()
    job.hello(0, 1, 2)
    assert job.iteration(1, 0, 2) == []
    assert job.iteration(1, 1) == [Log(1, 8, {}, [(1.0, 5), (1.0, 5)], 0.0)]


def test_a_job_ends_when_all_ranks_have():
    job = Job().running()
    job.on(Heard(1, DONE), Closed(1), Heard(2, DONE), Closed(2))
    assert job.tick() == []
    job.on(Heard(0, DONE), Closed(0))
    assert job.tick() == [Finish()]
    outcome = job.monitor.outcome(1.0, interrupted=False)
    assert (outcome.iterations, outcome.env_steps, outcome.stopped) == (9, 8, "steps")


def test_an_end_before_its_time_is_a_failure_unless_it_was_asked_for():
    early = Heard(0, {**DONE, "iteration": 8})
    (failed,) = Job().running().on(early)
    assert "rank 0 (learner[0]), iteration 8, finished: ended before iteration 9" in str(failed)
    asked = Job().running()
    asked.on(Interrupted(1))
    assert asked.on(early) == []


def test_the_leader_is_told_once_when_the_threshold_is_reached():
    job = Job(stop_return=10.0).running()
    assert job.on(Logged(99.0, MIN_EPISODES - 1), Logged(9.9, 500), Logged(None, 500)) == []
    assert job.on(Logged(10.0, 500), Logged(11.0, 500)) == [Tell("stop")]
    assert job.monitor.outcome(12.0, interrupted=False).mean_return == 10.0
    assert Job(stop_return=math.nan).running().on(Logged(10.0, 500)) == []


def test_checkpoints_are_asked_for_once_all_ranks_are_there():
    job = Job()
    job.hello(0, 1, 2)
    assert job.tick(CHECKPOINT_S, awake=True) == []
    job.iteration(1)
    assert job.tick(CHECKPOINT_S) == [Tell("checkpoint")]
    assert job.tick(CHECKPOINT_S / 2) == []


def test_interrupted_once_twice_and_in_vain():
    job = Job().running()
    first, note = job.on(Interrupted(1))
    assert first == Tell("stop")
    assert "interrupt again" in note.text
    assert job.on(Interrupted(1)) == []
    assert job.on(Interrupted(2)) == [GiveUp()]

    job = Job().running()
    job.on(Interrupted(1))
    job.tick(TIMEOUT_S + 0.1)
    note, last = job.on(Interrupted(1))
    assert "does not end" in note.text
    assert last == GiveUp()


def test_interrupted_twice_in_one_instant_or_before_the_leader_is_there():
    assert Job().running().on(Interrupted(2)) == [GiveUp()]
    assert Job().on(Interrupted(1)) == [GiveUp()]
    job = Job().running()
    job.on(Closed(0))
    assert job.on(Interrupted(1)) == [GiveUp()]


def test_the_first_error_is_the_failure_with_the_last_checkpoint():
    job = Job().running()
    job.on(Heard(2, {"kind": "checkpoint", "path": "run/checkpoints/000003"}))
    found, _ = job.on(error(1, "it broke"), error(2, "this too"))
    text = str(found.failure)
    assert text.startswith("rank 1 (actor[0]), iteration 3, cell learn: it broke")
    assert "somewhere" in text
    assert text.endswith("Last good checkpoint: run/checkpoints/000003")
    (mistake,) = job.on(error(1, "yours", mistake=True))
    assert "somewhere" not in str(mistake.failure)
    assert mistake.failure.exit_code == 2


def test_a_death_waits_for_words_that_explain_it():
    job = Job().running()
    job.on(Closed(1), Closed(2))
    assert job.tick(0.0) == []
    (found,) = job.on(error(1, "out of memory"))
    assert isinstance(found, Fail)

    job = Job().running()
    job.on(Closed(1), Closed(2))
    assert job.tick(0.0) == []
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    assert found == Examine("death", 1)
    remains = Remains(log="EXIT STRING: Killed (signal 9)", output=["last words"])
    text = str(job.monitor.explain(found, Stamp(4, 0, job.now), remains))
    assert "rank 1 (actor[0]), iteration 4" in text
    assert "died (killed by signal 9)" in text
    assert "last words" in text
    aborted = Remains(output=["Fatal Python error: Aborted"])
    assert "signal 6" in str(job.monitor.explain(found, Stamp(4, 0, job.now), aborted))


def test_a_lost_host():
    job = Job(hosts=("near", "near", "far")).running()
    job.on(Closed(2, lost="timed out"))
    job.tick(0.0)
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    assert found == Examine("death", 2, lost="timed out")
    text = str(job.monitor.explain(found, Stamp(1, 0, job.now), Remains()))
    assert "host far has not been heard of" in text


def test_hosts_that_no_rank_could_be_started_on():
    job = Job(hosts=("near", "near", "far"))
    job.hello(0, 1)
    assert job.tick(0.0, mpiexec=255) == []
    (found,) = job.tick(LAST_WORDS_S + 0.01, mpiexec=255)
    assert found == Examine("mpiexec")
    failure = job.monitor.explain(found, None, Remains(255, log="ssh: no route"))
    assert isinstance(failure, Unreached)
    assert "no rank on far has started" in str(failure)
    assert "ssh: no route" in str(failure)


def test_a_killed_launcher_is_named_and_not_the_ranks_that_went_with_it():
    job = Job().running()
    job.on(Closed(1), Closed(2))
    job.tick(0.0, mpiexec=-9)
    (found,) = job.tick(LAST_WORDS_S + 0.01, mpiexec=-9)
    failure = job.monitor.explain(found, None, Remains(-9))
    assert "mpiexec ended (killed by signal 9)" in str(failure)
    assert type(failure) is JobFailure


@pytest.mark.parametrize("all_seen", [True, False])
def test_a_rank_that_dies_in_its_imports(all_seen):
    job = Job()
    job.hello(0)
    wait_s = GONE_S if all_seen else LAUNCH_S
    assert job.monitor.silent == {1, 2}
    if all_seen:
        assert job.tick(0.1, living=frozenset({1, 2})) == []
    assert job.tick(wait_s - 0.1, living=frozenset({1})) == []
    assert job.tick(0.3, living=frozenset({1})) == [Examine("death", 2)]


def test_the_scheduler_ends_before_its_group():
    assert Job().running().tick(scheduler=1) == []  # native cells have no group
    job = Job(cells="mindspore").running()
    (found,) = job.tick(scheduler=-11)
    text = str(job.monitor.explain(found, None, Remains(-11, "the scheduler", words="why")))
    assert "the scheduler ended (killed by signal 11)" in text


def test_a_stall_has_the_deadline_of_the_start_and_then_of_the_plan():
    job = Job()
    job.hello(0, 1, 2)
    for _ in range(20):
        assert job.tick(START_TIMEOUT_S / 21, awake=False) == []
    job = Job().running()
    for _ in range(4):
        assert job.tick(TIMEOUT_S / 5, awake=False) == []
    job.stamps[0] = Stamp(1, 0, job.now)
    (found,) = job.tick(TIMEOUT_S / 4, awake=False)
    assert found.what == "stall"
    assert found.rank == found.stall.rank != 0
    failure = job.monitor.explain(found, None, Remains(action="\n  it slept"))
    assert isinstance(failure, Stalled)
    assert "no progress for" in str(failure)
    assert str(failure).endswith("it slept")


def test_a_suspended_machine_is_no_stall():
    job = Job().running()
    assert job.tick(2 * TIMEOUT_S, awake=False) == []
    assert job.tick(1.0) == []


def test_a_rank_in_this_process_ends_the_job_with_itself():
    job = Job(here=True)
    job.iteration(1)
    job.on(Closed(0))
    assert job.tick() == [Finish()]


def test_notes_name_the_rank():
    (note,) = Job().on(Heard(1, {"kind": "note", "iteration": 4, "note": "fell back"}))
    assert note == Note("rank 1 (actor[0]), iteration 4: fell back")
