"""`msrl dataset record`: the data set contains exactly what a run's policy plays."""

import shutil

import numpy as np
import pytest

from mindspore_rl.cli.main import main
from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.environments.registry import make_vector
from mindspore_rl.runtime import checkpoint
from mindspore_rl.trained import evaluate
from tests.compiler.inproc import PROGRAMS, request
from tests.runtime.test_worker import run

SEED = 4


@pytest.fixture(name="trained", scope="module")
def of_two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run(request(PROGRAMS / "recurrent.py", "SingleLearnerCoarse", 1), folder)
    path, about, _ = checkpoint.load_newest(folder / checkpoint.FOLDER)
    return folder, about["iteration"]


def recorded(path, *argv):
    words = ["dataset", "record", *map(str, argv[:-1]), str(path), *argv[-1]]
    assert main(words) == 0
    return Dataset(path)


def test_recorded_episodes_are_those_that_an_environment_plays(trained, tmp_path):
    """Its actions, taken again, give the same observations and rewards, to the end."""
    folder, _ = trained
    flags = ["--episodes", "3", "--seed", str(SEED), "--length", "500"]
    with recorded(tmp_path / "set", folder, flags) as dataset:
        assert dataset.about.environment == "CartPole-v1"
        env = make_vector("CartPole-v1", range(3), SEED)
        obs = env.reset()
        played = [{name: x.copy() for name, x in one.items()} for one in dataset.records()]
        under_way = np.ones(3, bool)
        for step in range(max(dataset.lengths)):
            for row in np.flatnonzero(under_way):
                np.testing.assert_array_equal(played[row]["obs"][step], obs[row])
            action = [one["action"][min(step, len(one["action"]) - 1)] for one in played]
            obs, _, reward, terminated, truncated = env.step(np.array(action, np.int32))
            for row in np.flatnonzero(under_way):
                one = played[row]
                assert one["reward"][step] == reward[row]
                assert one["terminated"][step] == terminated[row]
                assert one["truncated"][step] == truncated[row]
            under_way &= ~(terminated | truncated)
            assert under_way.tolist() == [step + 1 < n for n in dataset.lengths]
        env.close()
        expected = evaluate.evaluate(folder, 3, SEED, sample=True)
        assert dataset.returns().tolist() == expected
        assert (np.array(expected) == dataset.lengths).all()  # 1 per step


def test_several_runs_and_checkpoints_make_one_data_set(trained, tmp_path, capsys, refused):
    folder, iteration = trained
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    flags = ["--episodes", "2", "--checkpoint", str(iteration), "--greedy"]
    path = tmp_path / "set"
    with recorded(path, folder, other, flags) as dataset:
        names = [source.name for source in dataset.about.sources]
        assert names == [f"{one}, iteration {iteration}, greedy" for one in (folder, other)]
        assert dataset.about.episodes == 4
    with recorded(path, folder, ["--episodes", "2", "--append"]) as dataset:
        assert dataset.about.episodes == 6
        assert dataset.about.sources[-1].name == f"{folder}, iteration {iteration}, sampled"
    capsys.readouterr()
    for words, message in (
        ([folder, path], "is there; add to it with --append"),
        ([folder, tmp_path / "x", "--checkpoint", "77"], "no checkpoint of iteration 77; there"),
        ([tmp_path / "other" / "program", tmp_path / "x"], "is not a run directory"),
    ):
        assert message in refused("dataset", "record", *words)
    (other / "plan.json").chmod(0o666)
    assert "--trust" in refused("dataset", "record", other, tmp_path / "x")
    assert not (tmp_path / "x").exists()
