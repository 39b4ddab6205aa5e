"""Tests of the choice between one thread and several."""

import pytest

from mindspore_rl.platform import trial


@pytest.mark.parametrize(("seconds", "chosen"), [({1: 0.4, 3: 0.6}, 1), ({1: 0.4, 3: 0.3}, 3)])
def test_work_runs_on_the_faster_number_of_threads(seconds, chosen, monkeypatch):
    """Though some turns are disturbed, and after what is faster has changed."""
    now, tried = [0.0], []
    monkeypatch.setattr(trial.time, "perf_counter", lambda: now[0])
    work = trial.Trial(3)
    for turn in range(1, 1001):
        tried.append(work.begin())
        faster = seconds if turn <= 500 else {1: seconds[3], 3: seconds[1]}
        now[0] += faster[tried[-1]] + 5.0 * (turn in (1, 3, 128, 640))
        work.end()
    assert set(tried[:4]) == {1, 3}
    assert set(tried[64:127]) == {chosen}  # without a trial, as are the next
    assert set(tried[832:895]) == {4 - chosen}
