"""Ranks with the same cell compile and check it once."""

import dataclasses
import sys

import pytest

from mindspore_rl.runtime.coordinator.launch import Commands
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from tests.multiprocess import theorem
from tests.multiprocess.test_theorem import request_for

WORKER = """
from mindspore_rl.platform import interpreter
interpreter.hasten_mindspore()
from mindspore_rl.platform import cache
from mindspore_rl.runtime.rank import native_or_mindspore as lowering, worker

def noted(name, function):
    def call(*given):
        with open({file!r}, "a") as file:
            file.write(name + chr(10))
        return function(*given)
    return call

lowering.CompiledCell.graph = noted("compile", lowering.CompiledCell.graph)
lowering.difference = noted("check", lowering.difference)
cache.MAKING_S = 1e6  # however slow the machine is
worker.main()
"""


@pytest.mark.multiprocess
def test_one_rank_compiles_and_checks_a_cell_for_all(tmp_path, monkeypatch):
    request = request_for("a2c", "MultipleLearners", "CartPole-v1", 2)
    request = dataclasses.replace(request, record=(), compiled=True, num_iterations=1)
    plan, _ = theorem.prepare(request, tmp_path / "run")
    assert plan.num_ranks == 2
    assert plan.cells == "native"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = tmp_path / "done.txt"
    commands = Commands(worker=(sys.executable, "-c", WORKER.format(file=str(done))))
    run_job(plan, tmp_path / "run", JobOptions(progress=False, total_steps=0), commands)
    cells = len(list((tmp_path / "run" / "fragments").glob("*.cpp")))
    assert cells > 1
    assert sorted(done.read_text().split()) == ["check"] * cells + ["compile"] * cells
