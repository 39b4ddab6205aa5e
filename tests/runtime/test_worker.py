"""What a worker promises at an iteration boundary."""

import dataclasses
import socket

import numpy as np
import pytest

from mindspore_rl.communication.link import Link
from mindspore_rl.errors import CheckpointError
from mindspore_rl.runtime import worker
from mindspore_rl.runtime.job import prepare
from mindspore_rl.runtime.stamps import Stamps
from tests.lowering.inproc import PROGRAMS, request


def run(job, folder):
    plan, _ = prepare(job, folder)
    Stamps(folder, plan.num_ranks, create=True)
    pairs = [socket.socketpair() for _ in range(plan.num_ranks)]
    try:
        worker.run_inproc(plan, folder, [Link(ours) for ours, _ in pairs])
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
    return plan


def test_all_ranks_start_from_the_same_parameters(tmp_path, monkeypatch):
    started = {}

    class Spy(worker.FragmentRuntime):
        def save(self):
            if self.trainer is not None and self.iteration == 0:
                named = self.named_parameters("all")
                started[self.rank] = {name: p.asnumpy().copy() for name, p in named}
            super().save()

    monkeypatch.setattr(worker, "FragmentRuntime", Spy)
    plan = run(request(PROGRAMS / "random_start.py", str(PROGRAMS / "crossed.py"), 1), tmp_path)
    assert sorted(started) == list(range(plan.num_ranks)) == [0, 1, 2, 3]
    for name, value in started[0].items():
        assert np.any(value) or "bias" in name or "moment" in name
        for rank in (1, 2, 3):
            assert np.array_equal(started[rank][name], value), name


def test_checkpoint_of_another_environment_form_is_refused(tmp_path):
    job = request(PROGRAMS / "two_phase.py", "SingleLearnerCoarse", 1)
    run(job, tmp_path / "first")
    newest = sorted((tmp_path / "first" / "checkpoints").glob("*"))[-1]
    config = dataclasses.replace(job.config, env="graph:CartPole-v1")
    other = dataclasses.replace(job, config=config, resume=str(newest))
    with pytest.raises(CheckpointError, match="another form of the environment"):
        run(other, tmp_path / "second")
