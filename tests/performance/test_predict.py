"""Costs are measured under the simulation's names, and a sleep-only job is a real job."""

import dataclasses
import json
import re
import sys

import pytest

from mindspore_rl import programs
from mindspore_rl.cli import main as cli
from mindspore_rl.compiler.pipeline import JobRequest, prepare
from mindspore_rl.jobs import registry
from mindspore_rl.performance import device_model, predict
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.cost_tables import (
    CostTable,
    FragmentCosts,
    Line,
    LinkCosts,
    MachineCosts,
    line,
)
from mindspore_rl.performance.measure_cells import inside_s
from mindspore_rl.performance.rank_script import YIELD, Script
from mindspore_rl.plan.edges import edges_by_chunk
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime.coordinator.launch import Commands
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from tests.tiers import quick

FREE = CostTable((1, 2), (0.0, 0.0))
MACHINE = MachineCosts(2, LinkCosts(FREE, FREE, FREE, FREE), 0.0)


def said(_text):
    pass


def request(policy, workers=1, chunks=1, **config):
    file = registry.find_algorithm("ppo")
    found = registry.load_policy(registry.find_policy(policy))
    found = dataclasses.replace(found, schedule=Schedule(chunks=chunks))
    keys = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 4, **config}
    return JobRequest(file, found, programs.trainer_class(file).Config(**keys), workers)


@pytest.mark.slow
def test_steps_in_a_cell_are_measured_apart():
    job = predict.job_of(request("GPUOnly", env="graph:CartPole-v1", num_envs=64), said)
    (fragment,) = job.plan.fragments
    costs = job.costs[fragment.name]
    found = inside_s(job.plan, fragment, costs, Cluster(MACHINE))
    assert list(found) == ["environment steps"]
    assert 0 < found["environment steps"] < sum(costs.doings["cell iteration"].alone)


@pytest.mark.slow
def test_collectives_in_mindspores_cells_are_told_by_the_plan(tmp_path):
    asked = dataclasses.replace(request("MultipleLearners", 2, num_envs=4), cells="mindspore")
    plan, _ = prepare(asked, tmp_path)
    (fragment,) = plan.fragments
    each = CostTable((1, 2), (0.5, 0.5))
    cluster = Cluster(MachineCosts(2, LinkCosts(FREE, FREE, FREE, each), 0.0))
    found = inside_s(plan, fragment, FragmentCosts(2, {}), cluster)
    assert found == {"collectives": 0.5 * sum(r.times for r in plan.reductions)}
    native = dataclasses.replace(plan, cells="native")  # native cells show them in a profile
    assert inside_s(native, fragment, FragmentCosts(2, {}), cluster) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "workers", "chunks"),
    [
        ("SingleLearnerFine", 1, 2),
        ("SingleLearnerCoarse", 2, 1),
        ("MultipleLearners", 2, 1),
        ("Environments", 1, 1),
        ("Central", 2, 1),
    ],
)
def test_all_that_a_fragment_does_is_measured(policy, workers, chunks):
    job = predict.job_of(request(policy, workers, chunks), said)
    for fragment in job.plan.fragments:
        program = job.programs[fragment.name]
        script = Script(job.plan, fragment.first_rank, program, edges_by_chunk(job.plan))
        words = [w.name for w in script.words(3) if w.kind != YIELD]
        begin = words.index("boundary")
        doings = job.costs[fragment.name].doings
        one = words[begin : begin + words[begin + 1 :].index("boundary") + 2]
        pairs = {f"{a} > {b}" for a, b in zip(one, one[1:], strict=False)}
        assert {*one, *pairs} <= set(doings)
        assert all(sum(doing.alone) >= 0 for doing in doings.values())
    work = [found for costs in job.costs.values() for found in costs.work.values()]
    assert all(launches > 0 and moved > 0 for launches, _, moved in work)
    assert job.on(Cluster(MACHINE)).simulation.iteration_s > 0


@pytest.mark.slow
def test_a_job_of_few_iterations_is_measured_by_arrival(monkeypatch):
    monkeypatch.setattr(predict, "in_cache", lambda name: None)
    asked = request("Central", total_steps=64)
    asked = dataclasses.replace(
        asked, policy=dataclasses.replace(asked.policy, schedule=Schedule("asynchronous"))
    )
    job = predict.job_of(asked, said)
    assert job.on(Cluster(MACHINE)).simulation.iteration_s > 0


@pytest.mark.slow
def test_costs_are_kept_by_what_a_fragment_exchanges(tmp_path):
    """For three workers, a learner with all environments does more than for one."""
    names = {}
    for workers in (1, 3):
        plan, _ = prepare(request("SingleLearnerFine", workers), tmp_path / str(workers))
        learner = next(f for f in plan.fragments if f.name == "learner")
        names[workers] = predict._name(plan, tmp_path / str(workers), learner)
    assert names[1] != names[3]


def test_costs_are_kept_whatever_the_length_of_the_job(tmp_path):
    """In the source its length is the slope of the learning rate."""
    asked = request("GPUOnly", env="graph:CartPole-v1")
    plan, _ = prepare(asked, tmp_path)
    (fragment,) = plan.fragments
    file = tmp_path / "fragments" / fragment.file
    source = file.read_text()
    (slope,) = re.findall(r"\(1\.0 - ([\d.e-]+) \*", source)
    names = [predict._name(plan, tmp_path, fragment)]
    for text, key in ((source.replace(slope, "1e-07"), "total_steps"), (source, "num_steps")):
        file.write_text(text)
        longer = dataclasses.replace(plan, config={**plan.config, key: 4321})
        names.append(predict._name(longer, tmp_path, fragment))
    assert names[0] == names[1] != names[2]


@pytest.mark.multiprocess
@pytest.mark.parametrize("policy", quick(["Central", "MultipleLearners"], 0))
def test_a_rehearsal_sends_what_the_plan_says_and_imports_no_mindspore(policy, tmp_path):
    asked = dataclasses.replace(request(policy, 2), num_iterations=3)
    job = predict.rehearsed(asked, tmp_path, lambda fragment, name: 0.01)
    worker = (
        sys.executable,
        "-c",
        "import sys; from mindspore_rl.performance import sleep_only_job; sleep_only_job.main(); "
        "assert not hasattr(sys.modules.get('mindspore'), '__file__')",
    )
    outcome = run_job(
        job.plan, tmp_path, JobOptions(progress=False, total_steps=0), Commands(worker=worker)
    )
    assert outcome.iterations == 3
    counted = json.loads((tmp_path / "communication.json").read_text())["program"]
    assert counted
    for found in counted.values():
        assert found["calls"] == found["predicted_calls"]
        assert found["bytes"] == found["predicted_bytes"]
    assert job.on(Cluster(MACHINE)).simulation.iteration_s >= 5 * 0.01  # act 4 times, and learn


def test_costs_of_another_machine_are_measured_again(monkeypatch, tmp_path):
    kept, told = {}, []
    found = {"link": dataclasses.asdict(MACHINE.near), "oversleep_s": 1e-5}
    monkeypatch.setattr(predict, "_linked", lambda *_: json.loads(json.dumps(found)))
    monkeypatch.setattr(predict, "keep", kept.setdefault)
    made = predict.machine_costs(told.append, anew=True)
    assert made.about.items() >= predict.about().items()
    assert "date" in made.about
    other = dataclasses.asdict(dataclasses.replace(made, about={**made.about, "cores": "77"}))
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(other))
    monkeypatch.setattr(predict, "in_cache", lambda name: file)
    told.clear()
    assert predict.machine_costs(told.append).cores == made.cores
    assert "another machine or version" in told[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("launch_s: 1", "has no figure operations_per_s"),
        ("sources: {}", "has no figure"),
        (
            registry.find_device("v100_on_10gb_ethernet")
            .read_text()
            .replace("launch_s: 5.0e-6", "launch_s: -1"),
            "launch_s is -1.0, expected at least 0",
        ),
        (
            registry.find_device("v100_on_10gb_ethernet").read_text().partition("sources:")[0],
            "has no source of operations_per_s",
        ),
    ],
)
def test_a_description_that_lacks_something(text, message, tmp_path, refused):
    file = tmp_path / "device.yaml"
    file.write_text(text)
    where = ("--deployment", "sixteen_hosts_of_four_gpus", "--hardware", str(file))
    error = refused("plan", "ppo", "--env", "CartPole-v1", *where).strip().splitlines()[-1]
    assert message in error
    assert str(file) in error


@pytest.mark.parametrize("name", ["v100_on_10gb_ethernet", "a100_on_100gb_infiniband"])
def test_descriptions_of_the_project_name_their_sources(name):
    found, sources = device_model.load(registry.find_device(name))
    assert set(sources) == {field.name for field in dataclasses.fields(found)}


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)  # it measures nine jobs, two minutes on cores of its own
def test_policy_auto_trains_under_the_fastest(tmp_path, capsys):
    run = tmp_path / "run"
    given = ["--env", "graph:CartPole-v1", "--num-envs", "4", "--total-steps", "200", "num_steps=8"]
    command = ["train", "ppo", "--policy", "auto", "--quiet", "--run-dir", str(run), *given]
    assert cli.main(command) == 0
    said_policy = next(x for x in capsys.readouterr().err.splitlines() if "msrl: policy " in x)
    chosen = said_policy.split("msrl: policy ")[1].split(" ")[0]
    assert json.loads((run / "plan.json").read_text())["policy"] == chosen


def test_a_line_through_what_was_measured():
    found = line([2, 4, 8], [1.2e-3, 1.4e-3, 1.8e-3])
    assert (found.overhead_s, found.row_s) == pytest.approx((1e-3, 1e-4))
    assert found.residual < 1e-9
    bent = line([1, 2, 3], [1.0, 2.0, 2.0])
    assert bent.residual == pytest.approx(1 / 6)
    assert line([4], [0.5]) == Line(0.5, 0.0, 0.0)


@pytest.mark.slow
def test_cells_and_environments_are_measured_at_several_rows():
    found = predict.by_rows(request("SingleLearnerCoarse", 2, 1), (3, 2, 4), said)
    assert set(found) == {
        ("actor", "cell act"),
        ("actor", "environment"),
        ("learner", "cell learn"),
    }
    assert [rows for rows, _ in found["actor", "environment"]] == [1, 2, 2]
    assert all(seconds > 0 for times in found.values() for _, seconds in times)
