"""The plain loop's kept replay, and the numbers of its calls."""

import sys

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.runtime.reference import Kept, Reference


@pytest.mark.parametrize("by", ["stratified", "priority"])
def test_too_few_records_for_a_window_are_told_as_in_a_job(by):
    kept, noise = Kept(2), np.zeros((2, 4), np.float32)
    for number in range(2):
        kept.write(slice(None), [np.full((2, 1), number, np.float32)], 8)
    obs = kept.draw(noise, 4, by, 2)[0]
    assert obs.shape == (4, 2, 1)
    with pytest.raises(ReplayError, match="fewer records than the 3 of one draw"):
        kept.draw(noise, 4, by, 3)


def test_a_call_keeps_its_number_when_python_specialises_the_instructions_around_it():
    loop, names = object.__new__(Reference), []
    loop.draws, loop._sites = {}, {}

    def asked(_):
        names.append(loop._site("uniform_noise", sys._getframe(1)))
        return 0

    for _ in range(50):
        sum(asked(k) for k in (1, 2))
        sum(asked(k) for k in (1, 2)) + sum(asked(k) for k in (1, 2))
    assert {*names} == {f"uniform_noise#{number}" for number in (1, 2, 3)}
