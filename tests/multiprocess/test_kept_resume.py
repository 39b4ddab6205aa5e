"""Checkpoints contain the replay."""

import numpy as np
import pytest

from mindspore_rl.runtime.checkpoint import list_checkpoints, load
from tests.multiprocess.runs import ended, start

EACH = 8 * 8
OPTIONS = ("num_steps=8", "n_step=3", "learning_starts=128", "replay_size=1024", "--quiet")
OPTIONS += ("exploration=0.000001",)


def final(folder, iterations, policy, workers, *more):
    """Returns the last checkpoint of a run of DQN."""
    folder.mkdir()
    place = ("--policy", policy, "--workers", str(workers), "--cells", "native")
    steps = ("--total-steps", str(iterations * EACH))
    run = start(folder, *place, *OPTIONS, *steps, *more, algorithm="dqn")
    code, _, err = ended(run, 120.0)
    assert code == 0, err
    return load(list_checkpoints(folder / "run" / "checkpoints")[-1])[0]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_goes_on_as_if_nothing_had_been(tmp_path):
    """Bit by bit the same with the same workers; with others, another policy, nothing is lost."""
    whole = final(tmp_path / "whole", 40, "MultipleLearners", 2)
    final(tmp_path / "half", 20, "MultipleLearners", 2)
    resume = ("--resume", str(tmp_path / "half" / "run"))
    in_files = ("--replay-dir", str(tmp_path))
    same = final(tmp_path / "same", 40, "MultipleLearners", 2, *resume, *in_files)
    assert same.keys() == whole.keys()
    for name in whole:
        assert same[name].tobytes() == whole[name].tobytes(), name
    assert whole["replay/0"].shape == (128, 8, 4)
    other = final(tmp_path / "other", 21, "SingleLearnerCoarse", 1, *resume)
    before = load(list_checkpoints(tmp_path / "half" / "run" / "checkpoints")[-1])[0]
    rows = np.arange(128) // 8 == 20 % 16  # the rows that the one iteration has written
    for column in range(6):
        found, kept = other[f"replay/{column}"], before[f"replay/{column}"]
        assert np.array_equal(found[~rows], kept[~rows])
    assert not np.array_equal(other["replay/0"][rows], before["replay/0"][rows])
