"""The simulation executes the plan: it sends the plan's messages, and takes the expected time."""

import dataclasses
import random
from fractions import Fraction
from pathlib import Path

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler.pipeline import JobRequest, prepare
from mindspore_rl.jobs import registry
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.cost_tables import (
    CostTable,
    Doing,
    FragmentCosts,
    LinkCosts,
    MachineCosts,
)
from mindspore_rl.performance.device_model import Device
from mindspore_rl.performance.simulate import Simulator
from mindspore_rl.plan.traffic import predict
from mindspore_rl.policy import Schedule

PROGRAMS = Path(__file__).parents[1] / "programs"
ITERATIONS = 4
FREE = CostTable((1, 2), (0.0, 0.0))
POLICIES = (
    ("SingleLearnerCoarse", "CartPole-v1", {}),
    ("SingleLearnerCoarse", "CartPole-v1", {"lag": 2}),
    ("MultipleLearners", "CartPole-v1", {}),
    ("GPUOnly", "graph:CartPole-v1", {}),
    ("SingleLearnerFine", "CartPole-v1", {}),
    ("SingleLearnerFine", "CartPole-v1", {"chunks": 2}),
    ("SingleLearnerFine", "CartPole-v1", {"act_for": 1}),
    ("Environments", "CartPole-v1", {"chunks": 2}),
    ("Environments", "CartPole-v1", {}),
    ("Central", "CartPole-v1", {}),
)


def machine(cores=64, link=None):
    """A machine whose messages cost nothing, or as much as `link` says."""
    return MachineCosts(cores, link or LinkCosts(FREE, FREE, FREE, FREE), 0.0)


def planned(policy, environment, schedule, folder, workers=2, algorithm="ppo", **config):
    """Returns a plan, and the loops of its fragments."""
    file = registry.find_algorithm(algorithm)
    found = registry.load_policy(registry.find_policy(policy))
    found = dataclasses.replace(found, schedule=Schedule(**schedule))
    settings = programs.trainer_class(file).Config(
        **{"env": environment, "num_envs": 4, "num_steps": 8, **config}
    )
    seen = {}
    request = JobRequest(file, found, settings, workers, cells="mindspore")
    plan, _ = prepare(request, folder, seen.__setitem__)
    return plan, seen["regions"]


def simulated(plan, regions, costs=None, cluster=None, iterations=ITERATIONS):
    known = {f.name: FragmentCosts(4, (costs or {}).get(f.name, {})) for f in plan.fragments}
    return Simulator(plan, regions, known, cluster or Cluster(machine())).run(iterations)


@pytest.mark.parametrize(("policy", "environment", "schedule"), POLICIES)
def test_simulation_equals_counting(policy, environment, schedule, tmp_path):
    plan, regions = planned(policy, environment, schedule, tmp_path)
    counted = simulated(plan, regions).traffic
    for traffic in predict(plan):
        assert counted.pop(traffic.name, (0, 0)) == traffic.total(ITERATIONS), traffic.name
    assert set(counted) <= {"iteration boundary"}


def doing(*seconds):
    return Doing(seconds, seconds)


def test_time_is_that_of_the_longest_chain(tmp_path):
    plan, regions = planned("SingleLearnerCoarse", "CartPole-v1", {}, tmp_path)
    actor = {"cell act": doing(0.001), "environment": doing(0.002)}
    costs = {"actor": actor, "learner": {"cell learn": doing(0.1)}}
    found = simulated(plan, regions, costs)
    # The learner waits for a rollout of 8 steps, and the actors for its parameters.
    assert found.iteration_s == pytest.approx(8 * 0.003 + 0.1, rel=0.05)
    learner = found.spent[2]
    assert learner["cell learn"] == pytest.approx(0.1)
    waits = sum(time for what, time in learner.items() if what.startswith("waiting"))
    assert waits == pytest.approx(8 * 0.003, rel=0.2)


def test_messages_take_what_the_link_takes(tmp_path):
    plan, regions = planned("SingleLearnerFine", "CartPole-v1", {}, tmp_path, workers=1)
    slow = LinkCosts(FREE, FREE, CostTable((1, 2), (0.001, 0.001)), FREE)
    found = simulated(plan, regions, cluster=Cluster(machine(link=slow)))
    assert found.iteration_s == pytest.approx(16 * 0.001)
    # Between hosts nobody wakes a rank that sleeps: it notices late, the later the longer it slept.
    two = dataclasses.replace(plan, hosts=("a", "b"))
    found = simulated(two, regions, cluster=Cluster(machine(link=slow)))
    assert 0.017 <= found.iteration_s <= 0.017 * 1.15


def test_chunks_hide_the_time_of_the_others(tmp_path):
    times = {}
    for chunks in (1, 2):
        folder = tmp_path / str(chunks)
        folder.mkdir()
        where = ("SingleLearnerFine", "CartPole-v1", {"chunks": chunks}, folder, 1)
        plan, regions = planned(*where)
        half = doing(0.01 / chunks)  # of half the environments
        costs = {"environment": {"environment": half}, "learner": {"cell act": half}}
        times[chunks] = simulated(plan, regions, costs).iteration_s
    assert times[1] == pytest.approx(8 * 0.02, rel=0.1)
    assert times[2] == pytest.approx(8 * 0.01 + 0.005, rel=0.15)


def test_who_is_ready_does_not_wait_for_the_slow(tmp_path):
    """Steps take 2 or 18 ms; together, each step takes as long as the slowest of four."""
    uneven, times = Doing((0.01,), (0.01,), ((0.2,), (1.8,))), {}
    for act_for in (0, 1, 2):
        folder = tmp_path / str(act_for)
        folder.mkdir()
        where = ("SingleLearnerFine", "CartPole-v1", {"act_for": act_for}, folder, 4)
        plan, regions = planned(*where)
        costs = {"environment": {"environment": uneven}}
        times[act_for] = simulated(plan, regions, costs, iterations=40).iteration_s
    likely = 0.018 - 0.016 * 0.5**4
    assert times[0] == pytest.approx(8 * likely, rel=0.1)
    assert times[1] < 0.85 * times[0]
    assert times[1] < times[2] < times[0]


def test_actors_that_run_ahead_hide_the_time_of_the_learner(tmp_path):
    plan, regions = planned("SingleLearnerCoarse", "CartPole-v1", {"lag": 1}, tmp_path)
    for learns_s, expected in ((0.1, 0.1), (0.05, 8 * 0.01)):
        actor = {"environment": doing(0.01)}
        costs = {"actor": actor, "learner": {"cell learn": doing(learns_s)}}
        found = simulated(plan, regions, costs, iterations=ITERATIONS + 4)
        assert found.iteration_s == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("cores", "expected"), [(2, 0.08), (1, 0.16)])
def test_ranks_share_cores(cores, expected, tmp_path):
    plan, regions = planned("MultipleLearners", "CartPole-v1", {}, tmp_path)
    costs = {plan.fragments[0].name: {"environment": doing(0.01)}}
    found = simulated(plan, regions, costs, Cluster(machine(cores)))
    assert found.iteration_s == pytest.approx(expected, rel=0.01)


def test_a_core_is_slower_beside_another_that_works(tmp_path):
    plan, regions = planned("MultipleLearners", "CartPole-v1", {}, tmp_path)
    costs = {plan.fragments[0].name: {"environment": Doing((0.01,), (0.015,))}}
    found = simulated(plan, regions, costs, Cluster(machine(2)))
    assert found.iteration_s == pytest.approx(8 * 0.015, rel=0.01)


def test_workers_are_served_as_they_come(tmp_path):
    """A worker that is ten times as slow does not delay the others."""
    schedule = {"order": "asynchronous", "staleness": 8}
    plan, regions = planned("Central", "CartPole-v1", schedule, tmp_path, 3, "a2c")
    worker, server = (f.name for f in plan.fragments)
    costs = {worker: {"environment": doing(0.01)}, server: {"cell update": doing(0.001)}}
    found = simulated(plan, regions, costs)
    assert found.iteration_s == pytest.approx(8 * 0.01, rel=0.2)
    sent = {traffic.name: traffic for traffic in predict(plan)}
    for name, traffic in sent.items():
        assert found.traffic[name][1] / found.traffic[name][0] == pytest.approx(
            traffic.message_bytes / traffic.calls
        )


@pytest.mark.parametrize(("gather", "expected"), [(1, 0.09), (3, 0.1)])
def test_a_learner_takes_the_batches_that_are_there(gather, expected, tmp_path):
    """The learner, which is the slower here, is never idle."""
    schedule = {"order": "asynchronous", "gather": gather}
    plan, regions = planned(
        "SingleLearnerCoarse", "CartPole-v1", schedule, tmp_path, 3, "a2c", num_envs=6
    )
    actor, learner = (f.name for f in plan.fragments)
    learn_s = 0.03 if gather == 1 else 0.1
    costs = {actor: {"environment": doing(0.01)}, learner: {"cell learn": doing(learn_s)}}
    found = simulated(plan, regions, costs)
    assert found.iteration_s == pytest.approx(expected, rel=0.15)


def test_two_learners_make_each_update_together(tmp_path):
    """An iteration of four actors is two updates, each with one trajectory a learner."""
    policy = str(Path(__file__).parents[2] / "docs" / "examples" / "split_learners.py")
    schedule = {"order": "asynchronous"}
    plan, regions = planned(policy, "CartPole-v1", schedule, tmp_path, 4, "a2c", num_envs=8)
    costs = {"actor": {"environment": doing(0.01)}, "learner": {"cell learn": doing(0.05)}}
    found = simulated(plan, regions, costs)
    assert found.iteration_s == pytest.approx(2 * 0.05, rel=0.15)
    for reduction in (one for one in predict(plan) if one.name.endswith("over learner")):
        assert reduction.total(Fraction(1))[0] == 2 * 2
        calls, size = found.traffic[reduction.name]
        assert size / calls == reduction.message_bytes / reduction.calls


def test_a_learner_takes_the_records_that_are_there(tmp_path):
    """Its updates are as many as the iterations, whoever inserted the records."""
    plan, regions = planned(
        *("SingleLearnerCoarse", "CartPole-v1", {"order": "asynchronous"}, tmp_path, 3, "dqn"),
        **{"num_envs": 6, "n_step": 1, "batch_size": 12},
    )
    assert plan.arrivals.kept
    cell = next(cell for cell in plan.fragments[1].cells if cell.startswith("learn"))
    costs = {"actor": {"environment": doing(0.01)}, "learner": {f"cell {cell}": doing(0.1)}}
    assert simulated(plan, regions, costs).iteration_s == pytest.approx(0.1, rel=0.15)


def test_a_described_device_computes_instead(tmp_path):
    plan, regions = planned("MultipleLearners", "CartPole-v1", {}, tmp_path)
    name = plan.fragments[0].name
    device = Device(operations_per_s=1e12, launch_s=1e-5, near_latency_s=0.0)
    known = {name: FragmentCosts(2, {"cell learn": doing(5.0)}, {"cell learn": (100, 1e10, 1.0)})}
    cluster = Cluster(machine(), device=device)
    found = Simulator(plan, regions, known, cluster).run(ITERATIONS)
    assert found.iteration_s == pytest.approx(100 * 1e-5 + 1e10 / 1e12, rel=0.01)


def test_pieces_of_a_cell_vary_each_by_itself():
    """A rank that meets others between two pieces waits for the longest of each."""
    doing = Doing((1.0, 2.0), (3.0, 4.0), ((0.5, 1.5), (1.5, 0.5)))
    chance = random.Random(1)
    drawn = {tuple(doing.once(chance)) for _ in range(50)}
    assert drawn == {((0.5, 1.5), (3.0, 6.0)), ((1.5, 4.5), (1.0, 2.0))}
