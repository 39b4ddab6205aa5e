"""A job's policy is chosen among those that can run it."""

from types import SimpleNamespace

import pytest

from mindspore_rl.errors import ConfigError, MsrlError, PolicyError
from mindspore_rl.jobs import auto_policy, job, registry
from mindspore_rl.jobs.job import Job
from mindspore_rl.performance import predict

JOB = Job("ppo", policy="auto", env="CartPole-v1")


@pytest.fixture
def asked(monkeypatch):
    """Records the simulated policies and workers; SingleLearnerFine in chunks is the fastest."""
    found, numbers = [], set()

    def simulated(request, *_, **__):
        policy = request.policy
        found.append((policy.name, policy.schedule))
        numbers.add(request.workers)
        if policy.name == "Central" and policy.schedule.order != "asynchronous":
            raise PolicyError("Central cannot serve this")
        rate = 2.0 if policy.name == "SingleLearnerFine" else 1.0
        return SimpleNamespace(steps_per_s=rate * policy.schedule.chunks + 2 * policy.schedule.lag)

    monkeypatch.setattr(auto_policy, "predict", simulated)
    monkeypatch.setattr(predict, "machine_costs", lambda say: None)
    return found, numbers


def test_the_fastest_is_taken_with_its_chunks(asked, capsys):
    settled = auto_policy.settled(JOB)
    policy = job.request(settled).policy
    assert (policy.name, policy.schedule.chunks) == ("SingleLearnerFine", auto_policy.CHUNKS)
    assert {name for name, _ in asked[0]} == {
        *("Central", "Environments", "GPUOnly", "MultipleLearners"),
        *("SingleLearnerCoarse", "SingleLearnerFine"),
    }
    assert "msrl: policy SingleLearnerFine (chunks=2) with" in capsys.readouterr().err


def test_every_candidate_has_the_schedule_that_is_asked_for(asked):
    settled = auto_policy.settled(
        Job(**{**vars(JOB), "schedule": "order=asynchronous,staleness=3"})
    )
    assert {(s.order, s.staleness, s.chunks) for _, s in asked[0]} == {("asynchronous", 3, 1)}
    assert job.request(settled).policy.schedule.staleness == 3
    asked[0].clear()
    auto_policy.settled(Job(**{**vars(JOB), "schedule": "chunks=4"}))
    assert {s.chunks for _, s in asked[0]} == {4}


def test_actors_run_ahead_where_the_algorithm_permits_it(asked, capsys):
    def lags(algorithm, schedule):
        asked[0].clear()
        settled = auto_policy.settled(Job(**{**vars(JOB), **algorithm, "schedule": schedule}))
        return job.request(settled).policy, {(name, s.lag) for name, s in asked[0] if s.lag}

    ppo, a2c = {}, {"algorithm": "a2c"}
    policy, tried = lags(ppo, "chunks=1")
    assert (policy.name, policy.schedule.lag) == ("SingleLearnerCoarse", 1)
    assert tried == {("SingleLearnerCoarse", 1)}
    assert "msrl: policy SingleLearnerCoarse (lag=1) with" in capsys.readouterr().err
    assert lags(a2c, "chunks=1")[1] == set()
    policy, tried = lags(a2c, "chunks=1,lag=2")
    assert policy.schedule.lag == 2
    assert {lag for _, lag in tried} == {2}
    assert lags(ppo, "order=arrival")[1] == set()


@pytest.mark.parametrize(
    ("rate", "own", "taken"),
    [(4.3, 1, "synchronous"), (4.5, 1, "asynchronous"), (4.5, 4, "asynchronous")],
)
def test_an_asynchronous_schedule_must_be_worth_it(asked, monkeypatch, capsys, rate, own, taken):
    """Where the algorithm permits it; the fastest synchronous candidate here has a rate of 4."""
    before = auto_policy.predict

    def simulated(request, *rest, **named):
        found = before(request, *rest, **named)
        asynchronous = request.policy.schedule.order == "asynchronous"
        plan = SimpleNamespace(arrivals=SimpleNamespace(gather=own))  # a kept replay's: 4
        return SimpleNamespace(steps_per_s=rate, plan=plan) if asynchronous else found

    monkeypatch.setattr(auto_policy, "predict", simulated)
    settled = auto_policy.settled(Job(**{**vars(JOB), "algorithm": "impala", "workers": 4}))
    schedule = job.request(settled).policy.schedule
    tried = {(s.gather, s.staleness) for _, s in asked[0] if s.order == "asynchronous"}
    assert tried == ({(1, 4), (2, 4)} if own == 1 else {(1, 4)})
    assert schedule.order == taken
    if taken == "asynchronous":
        assert (schedule.gather, schedule.staleness) == (1, 4)
        assert "(asynchronous, gather=1) with 4 workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "env", "schedule", "told"),
    [
        ("sac", "Pendulum-v1", None, "max_lag and no max_staleness (how much older its actors' "),
        ("ppo", "CartPole-v1", None, "ppo declares no max_staleness (how much older its actors' "),
        ("sac", "Pendulum-v1", "lag=1", ""),
        ("dqn", "CartPole-v1", None, ""),
    ],
)
def test_schedules_that_an_algorithm_does_not_declare_are_told(
    asked, capsys, algorithm, env, schedule, told
):
    auto_policy.settled(Job(algorithm, policy="auto", env=env, schedule=schedule, workers=2))
    err = capsys.readouterr().err
    assert (told in err) if told else ("declares no" not in err)


def test_if_no_policy_can_serve_each_reason_has_a_line(monkeypatch):
    names = ("Central", "Central", "GPUOnly")
    policies = [registry.load_policy(registry.find_policy(name)) for name in names]
    found = [auto_policy.Candidate("", policy, 1, why="too large") for policy in policies]
    with pytest.raises(MsrlError, match="by --policy\n  Central: too large\n  GPUOnly: too large$"):
        auto_policy.best(found)


def test_a_yaml_file_may_ask_for_the_best_policy_and_for_a_schedule(asked, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("policy: auto\nschedule: {chunks: 3}\nworkers: 5\n")
    settled = auto_policy.settled(Job("ppo", config=str(file), env="CartPole-v1"))
    assert {s.chunks for _, s in asked[0]} == {3}
    assert asked[1] == {5}
    request = job.request(settled)
    assert (request.policy.name, request.policy.schedule.chunks) == ("SingleLearnerFine", 3)


def test_a_schedule_that_is_none(asked):
    with pytest.raises(ConfigError, match="chunk"):
        auto_policy.settled(Job(**{**vars(JOB), "schedule": "chnks=4"}))
    with pytest.raises(PolicyError, match="msrl train"):
        job.request(JOB)
