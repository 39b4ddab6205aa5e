"""The plain loop's kept replay."""

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.runtime.reference import Kept


@pytest.mark.parametrize("by", ["stratified", "priority"])
def test_too_few_records_for_a_window_are_told_as_in_a_job(by):
    kept, noise = Kept(2), np.zeros((2, 4), np.float32)
    for number in range(2):
        kept.write(slice(None), [np.full((2, 1), number, np.float32)], 8)
    obs = kept.draw(noise, 4, by, 2)[0]
    assert obs.shape == (4, 2, 1)
    with pytest.raises(ReplayError, match="fewer records than the 3 of one draw"):
        kept.draw(noise, 4, by, 3)
