"""Asynchronous schedules: the analysis's results, and refused schedules."""

import dataclasses
from pathlib import Path

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.compiler.lowering.project import project
from mindspore_rl.compiler.pipeline import JobRequest, analyse, prepare
from mindspore_rl.compiler.show.render import render_partition
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.plan.plan import Arrivals
from mindspore_rl.policy import WORKERS, FragmentRule, Schedule

PROGRAMS = Path(__file__).parents[1] / "programs"


def job(algorithm, policy, workers=2, schedule=None, **config):
    file = registry.find_algorithm(str(algorithm))
    chosen = registry.load_policy(registry.find_policy(policy))
    chosen = dataclasses.replace(chosen, schedule=schedule or Schedule("asynchronous"))
    return JobRequest(file, chosen, programs.trainer_class(file).Config(**config), workers)


def test_workers_reduce_over_their_own_samples(tmp_path):
    plan, cut = prepare(job("ppo", "Central", 3, num_envs=8), tmp_path)
    assert cut.arrivals == plan.arrivals == Arrivals("worker", "server", 6, drop_stale=False)
    assert not cut.reduced
    assert not cut.partial
    worker = (tmp_path / "fragments" / "worker.py").read_text()
    assert "w.learner.network, 32 * self.num_envs)" in worker
    reductions = worker.count("operators.reduce_samples(")
    assert worker.count(", 128 * self.num_envs)") == reductions > 0
    assert "AllReduce" not in worker
    assert "asynchronous: server serves one worker at a time" in render_partition(cut)
    assert plan.leader == 3


def test_the_server_loops_over_arrivals(tmp_path):
    prepare(job("ppo", "Central"), tmp_path)
    server = (tmp_path / "fragments" / "server.py").read_text()
    serve = server[server.index("    def serve(iteration):") :]
    for line in (
        '                (grads_2,) = yield "boundary:gradient#1 worker->server"\n',
        '                w.send("parameters:update#1 server->worker", ())\n',
        "    for sender in w.arrivals(serve):\n        w.fire(sender)\n",
    ):
        assert line in serve


def test_stale_messages_make_no_update_if_dropped():
    cut = analyse(job("a2c", "Central", schedule=Schedule("asynchronous", 1, drop_stale=True)))
    body = project(cut, "server", in_graph=False).body
    receive = next(op for op, _ in walk(body) if op.kind == "receive")
    assert receive.targets[-1] == "fresh"


@pytest.mark.parametrize(
    ("algorithm", "policy", "reason"),
    [
        ("a2c", "MultipleLearners", "the update is made on 2 replicas of actor[+]learner"),
        ("a2c", "GPUOnly", "the update is made on 2 replicas of loop"),
        ("a2c", "Environments", "the update is made on 2 replicas of agent"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(algorithm, policy, reason):
    config = {"env": "graph:CartPole-v1"} if policy == "GPUOnly" else {}
    with pytest.raises(PolicyError, match=f"{policy} cannot run {algorithm} with .*{reason}"):
        analyse(job(algorithm, policy, **config))


def test_three_fragments_are_refused():
    request = job("ppo", "Central")
    fragments = (
        FragmentRule("actor", ("environment", "actor"), WORKERS, "env"),
        FragmentRule("learner", ("replay", "gradient"), WORKERS, "env"),
        FragmentRule("server", ("update",)),
    )
    cuts = registry.load_policy(registry.find_policy("SingleLearnerCoarse")).cuts
    policy = dataclasses.replace(
        request.policy, fragments=fragments, cuts=(*request.policy.cuts, *cuts)
    )
    with pytest.raises(PolicyError, match="one that updates; there are actor, learner, server"):
        analyse(dataclasses.replace(request, policy=policy))
