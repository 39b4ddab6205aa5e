"""`msrl plot`: the curves that it draws from runs of `msrl train`."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.plan.plan import load_plan, save_plan
from mindspore_rl.trained.curves import curve, find_runs, grouped, spread


@pytest.fixture(scope="module")
def runs(small_run, tmp_path_factory):
    """A run, a copy with another seed and losses, and a copy that says another policy."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(small_run, folder / "a")
    plan = load_plan(folder / "a")
    other = {"policy": "Central", "environment": "CartPole-v1"}
    for name, changes in (("b", {"config": {**plan.config, "seed": 2}}), ("c", other)):
        shutil.copytree(folder / "a", folder / name)
        save_plan(dataclasses.replace(plan, **changes), folder / name)
    lines = [json.loads(line) for line in (folder / "a" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["values"]["loss"] *= 1.5
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "b" / "metrics.jsonl").write_text(text)
    return folder


def test_runs_that_differ_in_their_seed_are_one_curve(runs, tmp_path, capsys):
    path = tmp_path / "curves.svg"
    assert cli.main(["plot", str(runs), "--metric", "loss", "--output", str(path)]) == 0
    assert f"{path}: loss of 3 runs" in capsys.readouterr().out
    kinds = [curve(run, "loss", "env_steps").kind for run in find_runs([runs])]
    assert kinds[0] == kinds[1] == "a2c on graph:CartPole-v1, GPUOnly"
    assert kinds[2] == "a2c on CartPole-v1, Central"
    # An SVG draws text as shapes, with the words next to them.
    picture = path.read_text()
    for words in ("GPUOnly, 2 runs", "CartPole-v1, Central", "environment steps"):
        assert words in picture


def test_a_curve_is_what_was_logged(runs):
    lines = [json.loads(line) for line in (runs / "a" / "metrics.jsonl").read_text().splitlines()]
    found = curve(runs / "a", "loss", "iteration")
    assert found.x.tolist() == [line["iteration"] for line in lines]
    assert found.y.tolist() == [line["values"]["loss"] for line in lines]


def test_what_runs_differ_in_is_told(runs):
    one, other = (curve(runs / name, "loss", "env_steps") for name in "ab")
    changed = dataclasses.replace(other, config={**other.config, "gamma": 0.5})
    assert [len(members) for members in grouped([one, other]).values()] == [2]
    kind = "a2c on graph:CartPole-v1, GPUOnly"
    assert set(grouped([one, changed])) == {f"{kind}, gamma=0.99", f"{kind}, gamma=0.5"}


def test_a_mean_is_taken_where_all_runs_are(runs):
    one, other = (curve(runs / name, "loss", "env_steps") for name in "ab")
    short = dataclasses.replace(other, x=other.x[:3], y=other.y[:3])
    x, middle, low, high = spread([one, short])
    assert (x[0], x[-1]) == (one.x[0], short.x[-1])
    both = [np.interp(x, c.x, c.y) for c in (one, short)]
    np.testing.assert_allclose(middle, np.mean(both, axis=0))
    np.testing.assert_allclose(low, np.min(both, axis=0))
    np.testing.assert_allclose(high, np.max(both, axis=0))


def test_a_run_without_returns_or_metrics_is_left_out(runs, tmp_path, capsys, refused):
    for name in "abc":
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "c" / "metrics.jsonl").unlink()  # as of a run that has not begun
    file = tmp_path / "b" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "mean_return": None}) + "\n" for line in lines))
    picture = tmp_path / "curves.png"
    command = ["plot", "--output", str(picture)]
    assert cli.main([*command, str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert f"{picture}: mean_return of 1 run\n" in told.out
    for name in "bc":
        assert f"{tmp_path / name} is left out: it has no mean_return yet" in told.err
    assert "no mean_return of any iteration" in refused(*command, tmp_path / "b")


def test_what_cannot_be_drawn_is_told(runs, tmp_path, capsys, refused):
    run = str(runs / "a")
    for words, message in (
        ([run, "--metric", "los"], "has no los; it has approx"),
        ([str(tmp_path)], "is no run directory, and holds none"),
        ([run, "--metric", "loss", "--output", "a.docx"], "expected an ending of"),
    ):
        assert message.split("approx")[0] in refused("plot", *words)
    nowhere = ["--metric", "loss", "--output", str(tmp_path / "none" / "a.png")]
    assert cli.main(["plot", run, *nowhere]) == 1
    assert "choose another --output" in capsys.readouterr().err
