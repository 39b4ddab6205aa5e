"""The ranks send what the plan predicts, call by call and byte by byte; `test_theorem.py`, too."""

import dataclasses

import pytest

from mindspore_rl.plan.traffic import RECORDS, predict
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from tests.multiprocess import theorem
from tests.multiprocess.test_theorem import OLDER_IMAGES, PROGRAMS, request_for
from tests.tiers import quick

TWO_PHASE = str(PROGRAMS / "two_phase.py")
IN_PROCESS = [
    ("ppo", "SingleLearnerCoarse", "CartPole-v1", 3),
    ("ppo", "SingleLearnerFine", "Pendulum-v1", 3),
    ("ppo", "MultipleLearners", "CartPole-v1", 3),
    ("ppo", "Environments", "CartPole-v1", 2),
    ("mappo", "Environments", "graph:simple_tag_v3", 3),
    (TWO_PHASE, "GPUOnly", "graph:CartPole-v1", 3),
    (TWO_PHASE, "Central", "CartPole-v1", 3),
    (TWO_PHASE, str(PROGRAMS / "crossed.py"), "CartPole-v1", 1),
]


def _name(case):
    return "-".join(str(part).rpartition("/")[2] for part in case)


def _run(request, folder, moves=False):
    """Runs a job. Returns: its plan, and what was sent; asserts that it is what was predicted."""
    plan, _ = theorem.prepare(dataclasses.replace(request, record=(), compiled=False), folder)
    run_job(plan, folder, JobOptions(progress=False, total_steps=0))
    found = theorem.sent_as_predicted(plan, folder)
    assert (RECORDS in found["runtime"]) == moves
    return plan, found


def test_worked_by_hand(tmp_path):
    """Two workers with 4 Pendulums each: 3 float32 per observation, 1 per action, 32 steps."""
    plan, _ = theorem.prepare(request_for("ppo", "SingleLearnerFine", "Pendulum-v1", 2), tmp_path)
    start, action, outcome = predict(plan)
    assert (start.calls, start.message_bytes, start.each) == (2, 8 * 3 * 4, False)
    assert (action.calls, action.message_bytes) == (32 * 2, 32 * 8 * 4)
    row = 3 * 4 + 3 * 4 + 4 + 1 + 1  # next_obs, final_obs, reward, terminated, truncated
    assert (outcome.calls, outcome.message_bytes) == (32 * 2, 32 * 8 * row)


def test_images_are_sent_as_bytes(tmp_path):
    """Two images of 36 x 36, action, log_prob and reward, and two bools of each step."""
    request = request_for("impala", "SingleLearnerCoarse", "probe:pixels", 2, OLDER_IMAGES)
    plan, _ = theorem.prepare(request, tmp_path)
    transition = predict(plan)[0]
    assert transition.name.startswith("boundary:transition#1")
    row = 2 * 36 * 36 + 4 + 4 + 4 + 1 + 1
    assert (transition.calls, transition.message_bytes) == (2, 4 * 6 * row)


def test_a_collective_by_hand(tmp_path):
    """The number of truncations, means and variances, then 4 minibatches of 2 epochs, on each of 3.

    A variance is of deviations from the mean, which is reduced first; the remainder of the mean is
    reduced with the variance.
    """
    plan, _ = theorem.prepare(request_for("ppo", "MultipleLearners", "CartPole-v1", 3), tmp_path)
    truncated, mean, variance, gradient = predict(plan)
    assert (truncated.calls, truncated.message_bytes) == (3, 3 * 4)
    assert (mean.calls, mean.message_bytes) == (3, 3 * 2 * 4)
    assert (variance.calls, variance.message_bytes) == (3, 3 * 2 * 2 * 4)
    assert gradient.calls == 3 * 2 * 4


@pytest.mark.parametrize("case", quick([(case,) for case in IN_PROCESS], 7), ids=_name)
def test_in_process(case, tmp_path):
    _run(request_for(*case), tmp_path)


def test_records_of_other_replicas_are_counted_by_themselves(tmp_path):
    request = request_for(str(PROGRAMS / "across.py"), "MultipleLearners", "CartPole-v1", 2)
    _, found = _run(request, tmp_path, moves=True)
    moved = found["runtime"][RECORDS]
    assert moved["calls"] <= 3 * 2 * 4  # iterations, replicas, draws
    assert moved["bytes"] % (4 * 4 + 4 + 4 + 1) == 0  # a record: obs, action, reward, terminated
    assert moved["bytes"] < 0.3 * 3 * (3 * 24 * 2 + 48) * 25  # most records stay where they were


def test_parameters_that_wait_for_their_use_are_received_in_the_end(tmp_path):
    """Two workers that run two iterations ahead get the parameters of every iteration."""
    request = request_for("ppo", "SingleLearnerCoarse", "CartPole-v1", 2)
    policy = dataclasses.replace(request.policy, schedule=Schedule(lag=2))
    case = dataclasses.replace(request, policy=policy)
    _, found = _run(case, tmp_path)
    assert found["program"]["parameters:update#1 learner->actor"]["calls"] == 3 * 2
