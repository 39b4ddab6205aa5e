"""A cell is compiled by its first call only."""

from collections import Counter

import pytest
from mindspore.graph import api

from mindspore_rl.jobs import registry
from tests.compiler import inproc


@pytest.mark.slow
def test_iterations_after_the_first_compile_nothing(tmp_path, monkeypatch):
    compiled, calls = Counter(), []
    compile_cell = api._CellGraphExecutor.compile

    def counting(self, cell, *args, **kwargs):
        phase, new = compile_cell(self, cell, *args, **kwargs)
        if type(cell).__name__ == "Operations":  # the analysis reads it and never runs it
            return phase, new
        calls.append(type(cell).__name__)
        compiled[type(cell).__name__] += new
        return phase, new

    monkeypatch.setattr(api._CellGraphExecutor, "compile", counting)
    plan = inproc.run_compiled(
        registry.find_algorithm("ppo"), tmp_path, num_iterations=3, num_steps=16
    )
    assert {name.lower() for name in compiled} == {c.replace("_", "") for c in plan.cells}
    assert set(compiled.values()) == {1}
    assert len(calls) < 16  # a step does not ask either whether to compile


def test_failed_compilation_leaves_its_dump_in_the_run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="get_parameters"):
        inproc.run_compiled(inproc.PROGRAMS / "uncompilable.py", tmp_path / "run", num_iterations=1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert list((tmp_path / "run" / "mindspore").rglob("*.ir"))
