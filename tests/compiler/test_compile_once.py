"""A cell is compiled by its first call only."""

from collections import Counter

import pytest
from mindspore.graph import api

from mindspore_rl.jobs import registry
from tests.compiler import inproc
from tests.compiler.programs import program_with


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
    with pytest.raises(Exception, match="parameters_and_names"):
        inproc.run_compiled(inproc.PROGRAMS / "uncompilable.py", tmp_path / "run", num_iterations=1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert list((tmp_path / "run" / "mindspore").rglob("*.ir"))


OF_ONE = """from mindspore import Parameter
class Learn(BaseLearner):
    def __init__(self, net, config):
        super().__init__(net, config)
        self.scale = Parameter(ops.zeros((1,)), name="scale")
        self.of_scale = nn.Adam([self.scale], 0.1)

    def error(self, target):
        return ops.square(target.reshape(-1) - self.scale)

    def apply_scale(self, grads):
        self.of_scale(grads)
"""
BEHIND = """found, scale = 0.0, 1.0
        for o, a, t in msrl.minibatches(2, (obs, action, target)):
            grads, means = msrl.gradient(self.loss, self.net, o, a, t)
            of_scale, _ = msrl.gradient(self.error, self.scale, t)
            if means[0] > 99.0:
                found = 1.0
                break
            scale *= 0.5
        msrl.update(self.apply_scale, of_scale)
"""


def test_the_last_gradients_of_a_loop_are_used_behind_it(tmp_path):
    """MindSpore forgets the types of tuples that a compiled loop with `break` carries.

    It compiles no branch in it that sets two constants.
    """
    text = "gradient = msrl.gradient(self.loss, self.net, obs, action, target)"
    changed = [
        (text, BEHIND),
        ('grads, means = msrl.boundary("gradient", gradient)', "pass"),
        ("class Learn(BaseLearner):", OF_ONE),
        ('{"loss": means[0]}', '{"loss": means[0] * scale, "found": found}'),
    ]
    program = program_with(tmp_path, remove=changed)
    plan = inproc.run_compiled(program, tmp_path / "run", 1, num_steps=4)
    assert "learn" in plan.cells
