"""Windows of data sets in programs: valid requests, refused ones, and equal results everywhere."""

import os

import numpy as np
import pytest

from mindspore_rl.datasets.build import Part, write
from mindspore_rl.datasets.dataset import About, Dataset
from mindspore_rl.datasets.episodes import Episode, of_environment
from mindspore_rl.environments.registry import spec
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import MsrlError
from mindspore_rl.trained.evaluate import evaluate
from tests.compiler import inproc
from tests.compiler.programs import analyse_with
from tests.datasets.files import made, played
from tests.runtime.test_worker import run
from tests.tiers import quick

PROGRAM = inproc.PROGRAMS / "offline.py"


@pytest.fixture(scope="session", name="dataset")
def a_data_set(tmp_path_factory):
    return played(tmp_path_factory.mktemp("data") / "cartpole.msrl", "CartPole-v1")


@pytest.fixture(scope="session", name="reference")
def a_reference(dataset, tmp_path_factory):
    job = inproc.request(PROGRAM, "SingleLearnerCoarse", 1, dataset=str(dataset))
    return inproc.run_reference(job, tmp_path_factory.mktemp("reference"), once=True)


@pytest.mark.parametrize(
    ("policy", "workers"),
    quick(
        [("MultipleLearners", 3), ("SingleLearnerCoarse", 3), ("Central", 2), ("Environments", 2)],
        0,
    ),
)
def test_learners_have_what_one_would_have(dataset, reference, tmp_path, policy, workers):
    job = inproc.request(PROGRAM, policy, workers, dataset=str(dataset))
    assert inproc.run_and_compare(job, reference, tmp_path) == []


def windows_of(folder, text, **more):
    """Returns the template's program with a learner that learns from the first steps of windows."""
    first = f"obs, action, _, target, _, _ = {text}"
    return analyse_with(
        folder,
        learn=f"{first}\nobs, action, target = obs[:, 0], action[:, 0], target[:, 0]",
        **more,
    )


def test_each_environment_has_as_many_windows(dataset, tmp_path):
    cut = windows_of(tmp_path, f"msrl.dataset_windows({str(dataset)!r}, 24, 5)")
    value = cut.program.values["dataset_obs_row"]
    assert (value.shape, value.axis, value.per_env) == ((24, 5, 4), 0, 3)


def test_a_path_is_of_the_folder_one_works_in(dataset, tmp_path, monkeypatch):
    """Also if probes of the program are remembered from another folder."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        os.link(dataset, tmp_path / name / "data")
        monkeypatch.chdir(tmp_path / name)
        cut = windows_of(tmp_path, 'msrl.dataset_windows("data", 24, 5)')
        (op,) = [op for op in cut.program.body[-1].body if op.name == "dataset_windows#1"]
        assert op.attr["path"] == str(tmp_path / name / "data")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('msrl.dataset_windows("", 24, 5)', "of a file, as in `dataset=FILE`: make one with"),
        ("msrl.dataset_windows(3, 24, 5)", "the data set is 3"),
        ('msrl.dataset_windows("nowhere", 24, 5)', "nowhere cannot be opened"),
        ("msrl.dataset_windows(PATH, 20, 5)", "20 records with 8 (.|\n)* such as 16"),
        ("msrl.dataset_windows(PATH, 24, 0)", "windows of 0 steps"),
        ("msrl.dataset_windows(PATH, 24, 5000)", "windows of 5000 steps(.|\n)*at most"),
        ("msrl.dataset_windows(PATH, 24)", "with 2 arguments"),
        ("msrl.dataset_transitions(PATH)", "with 1 arguments"),
        ("msrl.dataset_transitions(SHORT, 24)", "has no transition: each of its records"),
        ("msrl.dataset_windows(OTHER, 24, 1)", r"has obs \(2,\) (.|\n)* \(4,\)(.|\n)*another"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(dataset, tmp_path, text, told):
    made(tmp_path / "other", [3, 4]).table.close()
    obs, action, reward = (
        np.zeros((1, 4), np.float32),
        np.zeros(1, np.int32),
        np.zeros(1, np.float32),
    )
    ends = {"terminated": np.zeros(1, bool), "truncated": np.ones(1, bool)}
    one = Episode(obs=obs, action=action, reward=reward, **ends)
    of_cartpole = of_environment(spec("CartPole-v1")), About("CartPole-v1", Discrete(2))
    write(tmp_path / "short", *of_cartpole, [Part("one", [1], [one])])
    text = text.replace("PATH", repr(str(dataset))).replace("OTHER", repr(str(tmp_path / "other")))
    text = text.replace("SHORT", repr(str(tmp_path / "short")))
    with pytest.raises(MsrlError, match=rf"program_\w+.py:\d+(.|\n)*{told}"):
        windows_of(tmp_path, text)


def test_to_play_the_data_need_not_be_there(dataset, tmp_path):
    file = tmp_path / "data"
    os.link(dataset, file)
    run(inproc.request(PROGRAM, "SingleLearnerCoarse", 1, dataset=str(file)), tmp_path / "run")
    with Dataset(file) as opened:
        assert len(opened.ids) == 12
    file.unlink()
    returns = evaluate(tmp_path / "run", 12, 1, sample=True)
    assert np.isfinite(returns).all()
