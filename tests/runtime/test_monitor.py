"""The coordinator's state machine: reactions to lists of events, without processes or clocks."""

import math

import pytest

from mindspore_rl.errors import JobFailure
from mindspore_rl.plan.plan import Arrivals, FragmentPlan, MessagePlan, Plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.plan.value import Value
from mindspore_rl.runtime.coordinator.events import (
    Closed,
    Evaluated,
    Examine,
    Fail,
    Finish,
    GiveUp,
    Heard,
    Interrupted,
    Keep,
    Log,
    Logged,
    Note,
    Remains,
    Saved,
    Tell,
    Tick,
)
from mindspore_rl.runtime.coordinator.failures import Stalled, Unreached
from mindspore_rl.runtime.coordinator.root_cause import CAUSE_S, LAST_WORDS_S
from mindspore_rl.runtime.coordinator.stall_detector import Stopped
from mindspore_rl.runtime.coordinator.state_machine import (
    GONE_S,
    LAUNCH_S,
    MOST_EVALUATIONS,
    JobOptions,
    Monitor,
)
from mindspore_rl.runtime.heartbeat import Stamp

CHECKPOINT_S, TIMEOUT_S, START_TIMEOUT_S = 20.0, 5.0, 60.0


class Job:
    """A monitor of a learner, the leader, and two actors, with a clock that the test sets."""

    def __init__(self, here=False, stop_return=None, eval_every=None, **fields):
        fragments = (
            FragmentPlan("learner", "learner.py", 0, ((0, 8),), (), ("learn",), ("learn",), True),
            FragmentPlan("actor", "actor.py", 1, ((0, 4), (4, 8)), (), (), (), False),
        )
        own = {"fragments": fragments, "timeout_s": TIMEOUT_S, "cells": "native"}
        self.plan = Plan(**PLAN | own | fields)
        options = JobOptions(
            False, 100, stop_return, checkpoint_every_s=CHECKPOINT_S,
            start_timeout_s=START_TIMEOUT_S, eval_every=eval_every,
        )  # fmt: skip
        self.now = 100.0
        self.monitor = Monitor(self.plan, options, self.now, here)
        self.stamps = {rank: Stamp(-1, 0, self.now) for rank in range(self.plan.num_ranks)}
        self.orders = []

    def on(self, *events):
        """Returns the reactions to events of one instant."""
        found = [order for event in events for order in self.monitor.on(event, self.now)]
        self.orders += found
        return found

    def tick(self, after_s=0.2, awake=True, **processes):
        """Returns the reactions after a while; the ranks progress unless they are not `awake`."""
        self.now += after_s
        if awake:
            self.stamps = {r: Stamp(s.iteration, s.stage, self.now) for r, s in self.stamps.items()}
        return self.on(Tick(dict(self.stamps), **processes))

    def hello(self, *ranks):
        said = {"kind": "hello", "host": "here", "pid": 50, "proxy": 40}
        return self.on(*(Heard(rank, {**said, "rank": rank}) for rank in ranks))

    def iteration(self, number, *ranks):
        found = []
        for rank in ranks or self.stamps:
            message = {"kind": "iteration", "rank": rank, "iteration": number, "metrics": {}}
            message |= {"env_steps": number * 8, "episodes": [(1.0, 5)] if rank else []}
            found += self.on(Heard(rank, message))
        return found

    def explained(self, found, remains=None, iteration=None):
        """Returns the failure told of a reaction, of a rank that had come to an iteration."""
        stamp = None if iteration is None else Stamp(iteration, 0, self.now)
        return self.monitor.failures.explain(found, stamp, remains or Remains())

    def running(self):
        """All ranks have completed an iteration."""
        self.hello(*self.stamps)
        self.iteration(1)
        return self


OBSERVED = Value((8,), "float32", 0, 1)
MESSAGES = (
    MessagePlan("obs", "", "actor", "learner", (OBSERVED,), "", (False,), "Gather", 1),
    MessagePlan("action", "", "learner", "actor", (OBSERVED,), "", (False,), "Scatter", 1),
)
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
    "messages": MESSAGES,
}
DONE = {"kind": "finished", "iteration": 9, "iterations_here": 9, "traffic": {}}


def error(rank, text, mistake=False, symptom=False, iteration=3, echo=False):
    return Heard(
        rank,
        {
            "kind": "error", "iteration": iteration, "stage": "cell learn", "message": text,
            "traceback": "Traceback: somewhere", "mistake": mistake, "symptom": symptom,
            "echo": echo,
        },
    )  # fmt: skip


def test_a_line_is_logged_when_all_ranks_have_reported_it():
    job = Job()
    job.hello(0, 1, 2)
    assert job.iteration(1, 0, 2) == []
    assert job.iteration(1, 1) == [Log(1, 8, {}, [(1.0, 5), (1.0, 5)], 0.0)]


def test_a_job_ends_when_all_ranks_have():
    job = Job().running()
    job.on(Heard(1, DONE), Closed(1), Heard(2, DONE), Closed(2))
    assert job.tick() == job.tick(LAST_WORDS_S + 0.01) == []
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
    assert job.on(Logged(9.9), Logged(None)) == []
    assert job.on(Logged(10.0), Logged(11.0)) == [Tell("stop")]
    job.iteration(2)
    outcome = job.monitor.outcome(12.0, interrupted=False)  # both numbers are of the same moment
    assert (outcome.mean_return, outcome.measured_at, outcome.env_steps) == (10.0, 8, 16)
    assert Job(stop_return=math.nan).running().on(Logged(10.0)) == []


def test_evaluations_have_checkpoints_of_their_own_and_decide_the_end():
    job = Job(stop_return=10.0, eval_every=20, num_iterations=999).running()

    def saved(iteration):
        return job.on(Heard(0, {"kind": "checkpoint", "iteration": iteration, "path": "one"}))

    assert job.on(Logged(99.0)) == job.tick() == []  # 8 steps, which explored
    assert saved(1) == [Saved("one")]
    job.iteration(3)
    assert (job.tick(), job.tick()) == ([Tell("checkpoint")], [])
    assert (saved(3), saved(3)) == ([Saved("one", evaluate=True)], [Saved("one")])
    job.iteration(4)
    assert job.tick() == job.on(Evaluated(9.0, 24)) == []  # before the next multiple, 40
    for number in range(5, 5 + 3 * MOST_EVALUATIONS, 3):
        job.iteration(number)
        assert job.tick() == [Tell("checkpoint")]
        saved(number)
    job.iteration(99)
    assert job.tick() == []  # all of them wait
    assert job.on(Evaluated(10.0, 24)) == [Tell("stop")]
    assert saved(100) == [Saved("one", evaluate=True)]
    outcome = job.monitor.outcome(99.0, interrupted=False)
    assert (outcome.mean_return, outcome.measured_at) == (10.0, 24)


def test_checkpoints_are_asked_for_once_all_ranks_are_there():
    job = Job()
    job.hello(0, 1, 2)
    assert job.tick(CHECKPOINT_S, awake=True) == []
    job.iteration(1)
    assert job.tick() == []  # the time counts from there
    assert job.tick(CHECKPOINT_S) == [Tell("checkpoint")]
    assert job.tick(CHECKPOINT_S / 2) == []


def test_an_iteration_has_one_checkpoint_however_often_they_are_asked_for():
    """Otherwise the leader would write one after the other, and never continue."""
    job = Job().running()
    assert job.tick(CHECKPOINT_S) == [Tell("checkpoint")]
    assert job.on(Heard(0, {"kind": "checkpoint", "path": "one"})) == [Saved("one")]
    assert job.tick(CHECKPOINT_S) == []
    job.iteration(2)
    assert job.tick() == [Tell("checkpoint")]


@pytest.mark.parametrize("own", [{}, {"arrivals": Arrivals("actor", "learner", 1, False)}])
def test_a_checkpoint_waits_for_the_metrics_of_what_it_has(own):
    job = Job(**own).running()
    job.iteration(2, 1, 2, 0)
    assert job.on(*(Heard(rank, {"kind": "saving"}) for rank in (0, 2))) == []
    *_, kept = job.on(Heard(1, {"kind": "saving"}))
    assert kept == Keep()
    lines = [order for order in job.orders if isinstance(order, Log)]
    assert [line.iteration for line in lines] == [1, 2]
    assert sum(len(line.episodes) for line in lines) == 4


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
    assert job.on(error(1, "it broke"), error(2, "this too"), error(1, "more")) == []
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    text = str(found.failure)
    assert text.startswith("rank 1 (actor[0]), iteration 3, cell learn: it broke")
    assert "somewhere" in text
    assert text.endswith("Last good checkpoint: run/checkpoints/000003")
    job = Job().running()
    job.on(error(1, "yours", mistake=True))
    (mistake,) = job.tick(LAST_WORDS_S + 0.01)
    assert "somewhere" not in str(mistake.failure)
    assert mistake.failure.exit_code == 2


def cause(*events, after_s, **fields):
    """Returns the cause of a job's failure, some time after events."""
    job = Job(**fields).running()
    job.on(*events)
    assert job.tick(0.0) == []
    (found,) = job.tick(after_s)
    return str(found.failure)


def test_a_loss_that_is_no_number_waits_for_the_environment_that_made_it():
    symptom, environment = error(0, "loss is nan", symptom=True), error(2, "reward is inf")
    assert "reward is inf" in cause(environment, symptom, after_s=LAST_WORDS_S + 0.01)
    assert "reward is inf" in cause(symptom, environment, after_s=LAST_WORDS_S + 0.01)
    job = Job().running()
    job.on(symptom)
    assert job.tick(CAUSE_S - 0.1) == []
    job.on(environment)
    (found,) = job.tick(0.1)
    assert "reward is inf" in str(found.failure)
    assert "loss is nan" in cause(symptom, after_s=CAUSE_S + 0.01)


def test_who_has_failed_in_an_earlier_iteration_has_failed_first():
    later, earlier = error(1, "later", iteration=5), error(2, "earlier", iteration=4)
    assert "earlier" in cause(later, earlier, after_s=LAST_WORDS_S + 0.01)
    assert "later" in cause(
        later, error(0, "nan", symptom=True, iteration=5), after_s=LAST_WORDS_S + 0.01
    )
    before = error(0, "nan", symptom=True, iteration=4)
    assert "nan" in cause(later, before, after_s=CAUSE_S + 0.01)
    own = Arrivals("actor", "learner", 1, False)  # iterations of workers are independent
    assert "later" in cause(later, earlier, after_s=LAST_WORDS_S + 0.01, arrivals=own)


def test_who_has_only_lost_a_peer_has_not_failed_first():
    echo = error(0, "MPI_Test failed", echo=True, iteration=3)
    ended = error(1, "loss is nan", symptom=True, iteration=4)
    assert "loss is nan" in cause(echo, ended, after_s=CAUSE_S + 0.01)
    assert "MPI_Test" in cause(echo, after_s=CAUSE_S + 0.01)
    job = Job().running()
    job.on(echo, Closed(0), Closed(1))
    assert job.tick(0.0) == []
    (found,) = job.tick(CAUSE_S + 0.01)
    assert (found.what, found.rank) == ("death", 1)


def test_nobody_waits_for_ranks_that_have_nothing_more_to_say():
    job = Job().running()
    job.on(error(0, "loss is nan", symptom=True), Closed(0), Closed(1), error(2, "nan too"))
    (found,) = job.tick(0.0)
    assert "nan too" in str(found.failure)


def test_a_death_waits_for_words_that_explain_it():
    job = Job().running()
    job.on(Closed(1), Closed(2))
    assert job.tick(0.0) == []
    job.on(error(1, "out of memory"))
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    assert isinstance(found, Fail)

    job = Job().running()
    job.on(Closed(1), Closed(2))
    assert job.tick(0.0) == []
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    assert found == Examine("death", 1)
    remains = Remains(log="EXIT STRING: Killed (signal 9)", output=["last words"])
    text = str(job.explained(found, remains, 4))
    assert "rank 1 (actor[0]), iteration 4" in text
    assert "died (killed by signal 9)" in text
    assert "last words" in text
    aborted = Remains(output=["Fatal Python error: Aborted"])
    assert "signal 6" in str(job.explained(found, aborted, 4))


def test_the_first_death_is_that_of_the_process_that_ended_first():
    """Hydra may kill the others within 1 ms, and their links may be read first."""
    job = Job().running()
    job.on(Closed(2), Closed(1))
    job.tick(0.0, ended=(1, 2))
    assert job.tick(LAST_WORDS_S + 0.01, ended=(1, 2)) == [Examine("death", 1)]


GONE = "[mpiexec@here] control_cb (mpiexec/pmiserv_cb.c:280): assert (!closed) failed"


def test_a_killed_proxy_is_told_from_the_ranks_that_died_with_it():
    job = Job().running()
    job.on(Closed(2), Closed(1))
    job.tick(0.0)
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    text = str(job.explained(found, Remains(log=GONE), 4))
    assert text.startswith("Hydra's proxy (pid 40) on here was killed, and the ranks that it had")
    printed = Remains(log=f"[1] what a rank prints: {GONE}")
    assert "rank 2 (actor[1])" in str(job.explained(found, printed, 4))


def test_a_lost_host():
    job = Job(hosts=("near", "near", "far")).running()
    job.on(Closed(2, lost="timed out"))
    job.tick(0.0)
    (found,) = job.tick(LAST_WORDS_S + 0.01)
    assert found == Examine("death", 2, lost="timed out")
    text = str(job.explained(found, iteration=1))
    assert "host far has not been heard of" in text


def test_hosts_that_no_rank_could_be_started_on():
    job = Job(hosts=("near", "near", "far"))
    job.hello(0, 1)
    assert job.tick(0.0, mpiexec=255) == []
    (found,) = job.tick(LAST_WORDS_S + 0.01, mpiexec=255)
    assert found == Examine("mpiexec")
    failure = job.explained(found, Remains(255, log="ssh: no route"))
    assert isinstance(failure, Unreached)
    assert "no rank on far has started" in str(failure)
    assert "ssh: no route" in str(failure)


def test_a_killed_launcher_is_named_and_not_the_ranks_that_went_with_it():
    job = Job().running()
    job.on(Closed(1), Closed(2))
    job.tick(0.0, mpiexec=-9)
    (found,) = job.tick(LAST_WORDS_S + 0.01, mpiexec=-9)
    failure = job.explained(found, Remains(-9))
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
        assert job.tick(0.1, living=frozenset({1})) == []
    assert job.tick(wait_s - 0.1, living=frozenset({1})) == []
    assert job.tick(0.3, living=frozenset({1})) == [Examine("death", 2)]


def test_a_rank_that_one_look_misses_is_not_dead():
    """However long ago the previous look was: on a busy machine, this process is delayed too."""
    job = Job()
    job.hello(0)
    for _ in range(3):
        assert job.tick(GONE_S + 0.5, living=frozenset({1, 2})) == []
        assert job.tick(GONE_S + 0.5, living=frozenset({1})) == []


def test_the_scheduler_ends_before_its_group():
    assert Job().running().tick(scheduler=1) == []  # native cells have no group
    job = Job(cells="mindspore").running()
    (found,) = job.tick(scheduler=-11)
    text = str(job.explained(found, Remains(-11, "the scheduler", words="why")))
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
    remains = Remains(actions={0: "\n  it ran", 1: "\n  it slept", 2: "\n  it slept"})
    failure = job.explained(found, remains)
    assert isinstance(failure, Stalled)
    assert "no progress for" in str(failure)
    assert str(failure).endswith("it slept")


def stall(job, *stamps, ages=(6.0, 6.0, 6.0), stopped=()):
    """Returns the report when ranks have been at their places for some seconds."""
    job.running()
    for _ in range(20):  # a longer tick looks like a suspended machine
        job.tick(0.5)
    for rank, (iteration, stage) in enumerate(stamps):
        job.stamps[rank] = Stamp(iteration, stage, job.now - ages[rank])
    (found,) = job.tick(0.1, awake=False)
    return str(job.explained(found, Remains(stopped=stopped))).splitlines()


ENVIRONMENT = Stage.ENVIRONMENT


def place(name):
    plan = Job().plan
    if name == "learn":
        return Stages(plan).cell("learner", "learn")
    return Stages(plan).edge(name)


LEARNER = "rank 0 (learner[0]), iteration 3"
FIRST, SECOND = "rank 1 (actor[0]), iteration 3", "rank 2 (actor[1]), iteration 3"


def test_who_hangs_in_its_own_work_is_blamed_before_those_that_wait_for_it():
    at = (3, place("obs")), (3, ENVIRONMENT), (3, place("action"))
    head, *waiting = stall(Job(), *at, ages=(6.0, 4.0, 6.0))
    assert head.startswith(f"{FIRST}, the environment: no progress for 4.1 s, since ")
    assert waiting == [
        "  rank 0 (learner[0]) (iteration 3, edge obs) waits for "
        "rank 1 (actor[0]) (iteration 3, the environment), "
        "rank 2 (actor[1]) (iteration 3, edge action)",
        "  rank 2 (actor[1]) (iteration 3, edge action) waits for "
        "rank 0 (learner[0]) (iteration 3, edge obs)",
    ]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_stopped_rank_is_at_fault_wherever_it_stands(victim):
    at = (3, place("obs")), (3, place("action")), (3, ENVIRONMENT)
    process = Stopped(77, "python", victim)
    head, *_ = stall(Job(), *at, stopped=(process,))
    where = (f"{LEARNER}, edge obs", f"{FIRST}, edge action", f"{SECOND}, the environment")
    assert head.startswith(
        f"{where[victim]}: python (pid 77) is stopped (signal SIGSTOP?), and nobody let it go on "
        "(kill -CONT 77): no progress for 6.1 s"
    )


def test_all_that_wait_for_each_other_are_told_and_nobody_blamed():
    at = (3, place("obs")), (3, place("action")), (3, place("action"))
    head, last, *waiting = stall(Job(), *at, ages=(6.0, 6.0, 3.5))
    assert head.startswith("every rank waits for another: no progress for 6.1 s, since ")
    assert last.startswith("  rank 2 (actor[1]) (iteration 3, edge action) came last, at ")
    assert [line.partition(" waits for ")[0] for line in waiting] == [
        "  rank 0 (learner[0]) (iteration 3, edge obs)",
        "  rank 1 (actor[0]) (iteration 3, edge action)",
        "  rank 2 (actor[1]) (iteration 3, edge action)",
    ]


def test_who_waits_for_one_that_goes_on_is_named_with_it():
    at = (3, place("obs")), (3, ENVIRONMENT), (3, place("action"))
    head, first, _ = stall(Job(), *at, ages=(6.0, 0.1, 6.0))
    assert head.startswith(f"{LEARNER}, edge obs: no progress")
    assert "(edge obs) waits for rank 1 (actor[0]) (iteration 3, the environment), rank 2" in (
        first.replace("iteration 3, edge", "edge")
    )


def test_replicas_in_a_collective_wait_for_each_other():
    fragments = (FragmentPlan("loop", "", 0, ((0, 4), (4, 8)), (), ("learn",), ("learn",), True),)
    job = Job(fragments=fragments, messages=())
    cell = Stages(job.plan).cell("loop", "learn")
    head, _, first, _ = stall(job, (3, cell), (3, cell))
    assert head.startswith("every rank waits for another")
    assert first.endswith(
        "(iteration 3, cell learn of loop) waits for rank 1 (loop[1]) (iteration 3, cell learn of "
        "loop)"
    )


def test_who_writes_a_checkpoint_waits_for_those_that_have_not_sent_their_part():
    late = (3, Stage.CHECKPOINT), (3, Stage.BOUNDARY), (2, ENVIRONMENT)
    head, first, _ = stall(Job(), *late)
    assert head.startswith("rank 2 (actor[1]), iteration 2, the environment: no progress")
    assert first.startswith("  rank 0 (learner[0]) (iteration 3, a checkpoint) waits for rank 2")
    head, first, _ = stall(Job(), late[0], late[1], late[1])
    assert head.startswith(f"{LEARNER}, a checkpoint: no progress")
    assert first.startswith("  rank 1 (actor[0]) (iteration 3, the iteration boundary) waits for")


def test_a_rank_of_another_host_that_sends_no_stamps_is_at_fault():
    job = Job(hosts=("near", "near", "far"))
    job.running()
    job.on(*(Heard(rank, {"kind": "stamp"}) for rank in range(3)))
    for _ in range(20):
        job.tick(0.5)
        job.on(Heard(0, {"kind": "stamp"}), Heard(1, {"kind": "stamp"}))
    at = (3, place("obs")), (3, place("action")), (3, place("action"))
    for rank, (iteration, stage) in enumerate(at):
        job.stamps[rank] = Stamp(iteration, stage, job.now - 6.0)
    (found,) = job.tick(0.1, awake=False)
    text = str(job.explained(found))
    assert text.startswith("rank 2 (actor[1] on far), iteration 3, edge action: its process has ")
    assert "not been heard of for 10.1 s" in text


@pytest.mark.parametrize("name", ["hydra_pmi_proxy", "mpiexec", "MindSpore's scheduler"])
def test_what_is_stopped_while_ranks_start_is_named(name):
    job = Job()
    job.hello(0)
    for _ in range(round(START_TIMEOUT_S)):
        assert job.tick(1.0, awake=False) == []
    (found,) = job.tick(0.1, awake=False)
    remains = Remains(stopped=(Stopped(8, name, None),))
    text = str(job.explained(found, remains))
    assert text.startswith(f"{name} (pid 8) is stopped (signal SIGSTOP?), and nobody let it go on")


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
