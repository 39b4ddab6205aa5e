"""Tests of `msrl check`: outcomes, lines and exit codes."""

import dataclasses
import itertools
import math
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindspore_rl import programs
from mindspore_rl.checking import held, plain
from mindspore_rl.checking.compared import Compared, compared
from mindspore_rl.checking.table import print_rows
from mindspore_rl.cli.check import cover
from mindspore_rl.cli.main import main
from mindspore_rl.compiler import pipeline
from mindspore_rl.errors import JobFailure
from tests.commands import started
from tests.tiers import quick

ROOT = Path(__file__).parents[2]
REINFORCE = ROOT / "docs" / "examples" / "reinforce.py"
CORRIDOR = f"{ROOT / 'docs' / 'examples' / 'corridor.py'}:Corridor"
IN_THIS_PROCESS = ("--workers", "1", "--cells", "native", "--iterations", "1")
"""For policies with one fragment, such as the two below."""
LEARNERS = ("--policy", "MultipleLearners")


def line_of(text: str, file: Path = REINFORCE) -> str:
    """Returns `file.py:7`, the place of the first line that contains a text."""
    number = next(i for i, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file.name}:{number}"


def changed(folder: Path, old: str, new: str) -> Path:
    """Returns a copy of the example with one change."""
    source = REINFORCE.read_text()
    assert old in source
    file = folder / "changed.py"
    file.write_text(source.replace(old, new))
    return file


def outcomes(printed: str) -> dict[str, str]:
    """Returns the outcome of each policy in the table."""
    found = re.findall(r"^ (\w+) +\d+ +\w+ +(\w+) ", printed, re.M)
    return dict(found)


def test_equal_under_two_policies(capsys):
    assert main(["check", str(REINFORCE), *LEARNERS, "GPUOnly", *IN_THIS_PROCESS]) == 0
    printed = capsys.readouterr()
    assert outcomes(printed.out) == {"MultipleLearners": "equal", "GPUOnly": "equal"}
    assert "of CartPole-v1 and graph:CartPole-v1, num_envs=8 num_steps=16" in printed.out
    assert "action#1, gradient#1, 4 metrics, 16 parameters" in printed.out
    assert "each case ran twice: as it trains, and with the values at marks" in printed.out
    assert printed.out.endswith("2 equal\n")
    assert "GPUOnly, 1 worker, native cells: equal" in printed.err


UNEVEN = """
        for turn in msrl.epochs(2):
            for k in (1.0, 2.0):
                if k + turn < 2.5:
                    uneven, _ = GRADIENT
                    msrl.update(self.apply, uneven)
        """


@pytest.mark.slow
def test_values_that_are_not_compared_are_told(capsys, tmp_path):
    """Of the first further gradient nobody reads the parameters' part, of the second nothing.

    Of the third a condition leaves out one turn.
    """
    again = (
        "msrl.gradient(\n            self.loss, self.network, batch.obs, batch.action, advantage)"
    )
    more = f"_, (unread, more) = {again}\n        unread, _ = {again}{UNEVEN}loss, entropy"
    more = more.replace("GRADIENT", again)
    file = changed(tmp_path, "loss, entropy = means", f"{more} = means")
    file.write_text(file.read_text().replace('"returns": mean}', '"returns": mean, "more": more}'))
    assert main(["check", str(file), *LEARNERS, *IN_THIS_PROCESS]) == 0
    printed = capsys.readouterr().out
    assert outcomes(printed) == {"MultipleLearners": "equal"}
    assert "action#1, gradient#1, gradient#2, gradient#4, 5 metrics" in printed
    assert re.search(r"not compared in every iteration: gradient#4 \(changed.py:\d+\), of", printed)
    assert re.search(r"not compared: gradient#3 \(changed.py:\d+\), whose values nobody", printed)


@pytest.mark.parametrize("recorded", quick([True, False], 1))
def test_a_mistake_is_told_with_its_line_and_how_far_it_goes(
    recorded, monkeypatch, capsys, tmp_path
):
    """The gradient of one fragment is a third of the correct one, once only as it trains."""
    prepare = pipeline.prepare

    def spoilt(request, run_dir, *see, **cut):
        found = prepare(request, run_dir, *see, **cut)
        if recorded != bool(request.record):
            return found
        (file,) = (run_dir / "fragments").glob("*.py")
        source = file.read_text()
        file.write_text(re.sub(r"(gradient_function\(.*?, )(\d+)\)", r"\1\2 * 3)", source))
        assert file.read_text() != source
        return found

    monkeypatch.setattr(pipeline, "prepare", spoilt)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert main(["check", str(REINFORCE), *LEARNERS, *IN_THIS_PROCESS]) == 1
    printed = capsys.readouterr().out
    assert outcomes(printed) == {"MultipleLearners": "different"}
    words = " ".join(printed.split())
    where = f"gradient#1 ({line_of('grads, means = ')}), iteration 0: "
    if not recorded:
        where = f"metric loss ({line_of('msrl.report(')}), iteration 0, as trained: "
    assert where in words
    assert "(relative 6.7e-01)" in words
    assert list(tmp_path.glob("msrl-check-*")) == []


def test_an_environment_in_python_is_refused_where_it_is_to_be_compiled(monkeypatch, capsys):
    """The job of the other policy is not run here."""
    monkeypatch.setattr(held, "run_held", lambda *_: ({}, [Compared(0, "boundary:action#1")]))
    asked = (*LEARNERS, "GPUOnly", "--env", CORRIDOR, *IN_THIS_PROCESS)
    assert main(["check", str(REINFORCE), *asked]) == 0
    printed = capsys.readouterr().out
    assert outcomes(printed) == {"MultipleLearners": "equal", "GPUOnly": "refused"}
    assert "has no graph form" in " ".join(printed.split())
    assert printed.endswith("1 equal, 1 refused\n")


def test_what_is_refused_is_told_with_its_line(tmp_path, capsys):
    """A mean over the batch without `msrl`, with two learners; nothing is left to compare."""
    file = changed(tmp_path, "variance) + 1e-8)", "variance) + 1e-8) - returns.mean()")
    assert main(["check", str(file), *LEARNERS, "--workers", "2"]) == 2
    printed = capsys.readouterr()
    assert outcomes(printed.out) == {"MultipleLearners": "refused"}
    assert line_of("returns.mean()", file) in printed.out
    assert "all refused with num_steps=16: once more" in printed.err
    assert "nothing was compared: every case is refused" in printed.err


@pytest.mark.multiprocess
def test_an_asynchronous_job_is_compared_with_the_plain_loop_of_its_log(monkeypatch, capsys):
    """The job reports another loss than the plain loop."""
    run_plan = held.run_plan

    def spoilt(plan, run_dir):
        found = run_plan(plan, run_dir)
        file = run_dir / "metrics.jsonl"
        file.write_text(re.sub(r'"loss": -?', '"loss": 9', file.read_text()))
        return found

    monkeypatch.setattr(held, "run_plan", spoilt)
    asked = ("--schedule", "order=asynchronous", "num_steps=4", *IN_THIS_PROCESS)
    words = ("--policy", "SingleLearnerCoarse", "Central", *asked)
    assert main(["check", str(REINFORCE), *words]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        "SingleLearnerCoarse 1 native different .* metric loss, after .*: 1 of 1 d", printed
    )
    assert "Central 1 native refused policy Central sends gradients, " in printed
    assert "1 iterations of CartPole-v1, num_envs=8 num_steps=4, asynchronously; " in printed


def test_a_loop_that_differs_from_itself(tmp_path, capsys):
    count = "COUNT = __import__('itertools').count()\n\n\n@dataclass(frozen=True)"
    file = changed(tmp_path, "@dataclass(frozen=True)", count)
    file.write_text(file.read_text().replace("config.seed, 1)", "config.seed, next(COUNT))"))
    assert main(["check", str(file), *LEARNERS, "num_steps=4", *IN_THIS_PROCESS]) == 1
    told = capsys.readouterr().err
    line = line_of("grads, means = ", file)
    assert f"{line}: two runs of the plain loop differ, first in iteration 0: " in told


def test_a_job_that_fails_is_no_equal_one(monkeypatch, capsys):
    def fails(*_):
        raise JobFailure("rank 0 died")

    monkeypatch.setattr(held, "run_held", fails)
    assert main(["check", str(REINFORCE), *LEARNERS, *IN_THIS_PROCESS]) == 1
    assert "failed              rank 0 died" in capsys.readouterr().out


def test_with_a_lag_two_iterations_act_with_parameters_that_were_learnt(monkeypatch, capsys):
    asked = []

    def fails(plan, _, reference, iterations, __):
        asked.append((plan.num_iterations, len(reference.reports), iterations))
        raise JobFailure("rank 0 died")

    monkeypatch.setattr(held, "run_held", fails)
    words = ("--schedule", "lag=2", "--workers", "1", "--cells", "native", "num_steps=4")
    assert main(["check", str(REINFORCE), *LEARNERS, *words]) == 1
    assert asked == [(5, 5, 5)]
    assert "5 iterations, each from" in capsys.readouterr().out


def test_a_line_is_no_picture(capsys):
    print_rows(("where",), (), [("dqn.py:100: x = y",)])
    assert "dqn.py:100: x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pppo"], "unknown algorithm 'pppo'"),
        (["ppo", "--policy", "Centrel"], "did you mean Central"),
        (["ppo", "--policy", "Central", "--workers", "3", "num_stepz=3"], "did you mean num_steps"),
        (["ppo", "--policy", "auto"], "policy auto"),
        (["ppo", "--workers", "0"], "at least 1"),
        (["ppo", "--env", "CartPole-v7"], "CartPole-v"),
        (["ppo", "--device", "gpu", "--cells", "native"], "--cells native is for the CPU"),
    ],
)
def test_wrong_words_are_refused(words, told, refused):
    assert told in refused("check", *words)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = ("check", REINFORCE, "num_steps=8", "--policy", "SingleLearnerFine")
    process = started("-m", "mindspore_rl.cli", *words)
    for line in process.stderr:
        if "two runs agree" in line:  # ranks start after this line
            break
    assert len(list(tmp_path.glob("msrl-check-*"))) == 1
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert (process.returncode, list(tmp_path.glob("msrl-check-*"))) == (130, [])
    assert "msrl: interrupted" in told


@pytest.mark.parametrize(("policies", "workers"), [*itertools.product((1, 2, 6), (1, 3))])
def test_every_policy_and_every_number_of_workers_occurs(policies, workers):
    named = [(f"{name}.py", name) for name in "abcdef"[:policies]]
    cases = list(cover(named, range(workers), "native"))
    assert {case.policy for case in cases} == {name for _, name in named}
    assert {case.workers for case in cases} == set(range(workers))
    assert len(cases) == len(set(cases)) == max(policies, workers)


def test_metrics_of_the_environments_are_not_compared():
    reference = SimpleNamespace(reports=[{"loss": 1.0, "info/of_the_program": 2.0}])
    job = {"loss": 1.0, "info/won": 0.5}
    found = {one.name: bool(one.wrong) for one in held.compare_reports(job, reference, 0)}
    assert found == {"metric loss": False, "metric info/of_the_program": True}
    found = held.compare_reports({**job, "grad_norm": 1.0}, reference, 0)
    assert "metric grad_norm" in [one.name for one in found if one.wrong]


def test_whole_numbers_are_compared_exactly():
    wanted = np.array([1_000_000, 3], np.int32)
    assert compared(0, "ids", wanted, wanted).wrong == ""
    assert "1 of 2 differ, worst 1000001" in compared(0, "ids", wanted + [1, 0], wanted).wrong
    assert compared(0, "ids", wanted * 1.000001, wanted * 1.0).wrong == ""
    priorities = wanted.astype(np.int64)  # fixed point, made from floats
    assert compared(None, "replay/6", priorities + [1, 0], priorities).wrong == ""


@pytest.mark.parametrize(
    ("got", "far"), [([1.0, math.nan], 0.0), ([3.0, math.nan], 2.0), ([1.0, 0.0], math.inf)]
)
def test_how_far_a_value_is(got, far):
    assert compared(0, "x", np.array(got), np.array([1.0, math.nan])).far == far


def test_what_rounding_does_is_told_from_a_mistake(tmp_path):
    """A metric that is the tenth digit of a loss; its gradient is correct."""
    file = changed(tmp_path, '"returns": mean}', '"returns": ops.sin(1e9 * loss)}')
    file.write_text(file.read_text().replace("action_space.n, 0.01", "action_space.n, 1.0"))
    config = dataclasses.replace(programs.trainer_class(file).Config(), num_steps=8)
    known = plain.plain_run(file, config, 1, {})
    sites = (("metric returns", 0.5), ("boundary:gradient#1", 1e-3))
    off = [Compared(0, name, far, "!") for name, far in sites]
    moved = plain.rounding_alone(off, file, config, known, {})
    assert [plain.is_rounding(one, moved[one]) for one in off] == [True, False]
    assert moved[off[0]].far > 0.05
    assert 0.0 < moved[off[1]].far < 1e-5


def test_what_rounding_in_a_gradient_does_to_an_update_is_told_from_a_mistake(tmp_path):
    """Adam divides a gradient's entries, which are small for one feature, by their own size."""
    flat = "obs.reshape((-1, obs.shape[-1]))"
    small = f"{flat} * ops.concat((ops.ones_like(obs[0, 0, :3]), 1e-7 + 0 * obs[0, 0, 3:]))"
    file = changed(tmp_path, f"self.network({flat})", f"self.network({small})")
    file.write_text(file.read_text().replace("g_rate)", "g_rate, eps=1e-15)"))
    config = dataclasses.replace(programs.trainer_class(file).Config(), num_steps=8)
    known = plain.plain_run(file, config, 1, {})
    name, step = "parameters/actor.network.layers.0.weight", config.learning_rate
    right, wrong = (Compared(None, name, step / 8, "!", mean) for mean in (step / 64, step))
    moved = plain.rounding_alone([right, wrong], file, config, known, {})
    assert [plain.is_rounding(one, moved[one]) for one in (right, wrong)] == [True, False]
