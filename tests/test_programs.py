"""Files of algorithms and policies, loaded by path."""

from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_rl import programs
from mindspore_rl.errors import MsrlError, PolicyError
from mindspore_rl.jobs import registry

BROKEN = """
from mindspore_rl.policy import Schedule
SCHEDULE = Schedule(chunks=0)
"""


@pytest.mark.parametrize(
    ("text", "error"), [(BROKEN, PolicyError), ("import nowhere_at_all", MsrlError)]
)
def test_a_file_that_fails_fails_again(text, error, tmp_path):
    file = tmp_path / "policy.py"
    file.write_text(text)
    texts = set()
    for _ in range(2):
        with pytest.raises(error) as caught:
            registry.load_policy(file)
        texts.add(str(caught.value))
    assert len(texts) == 1


class Copied:
    """A trainer whose target takes the online network's values, as MindSpore's users write it."""

    def __init__(self, config, spec):
        self.actor, self.learner = nn.Dense(3, 2), nn.Cell()
        self.learner.online = self.actor
        self.learner.target, self.learner.other = nn.Dense(3, 2), nn.Dense(3, 2)
        self.learner.target.weight.set_data(self.actor.weight)
        self.learner.other.weight.set_data(self.actor.weight.value())


def test_a_parameter_made_of_another_has_its_own_memory():
    """An assignment to a target changed the online network in the plain loop, and in no job."""
    trainer = programs.make_trainer(Copied, SimpleNamespace(seed=1), None)
    online = trainer.actor.weight.asnumpy().copy()
    for copy in (trainer.learner.target, trainer.learner.other):
        np.testing.assert_array_equal(copy.weight.asnumpy(), online)
        ops.assign(copy.weight, copy.weight + 1.0)
        np.testing.assert_array_equal(trainer.actor.weight.asnumpy(), online)
        copy.weight.set_data(trainer.actor.weight)  # in an update
        ops.assign(trainer.actor.weight, trainer.actor.weight - 1.0)
        np.testing.assert_array_equal(copy.weight.asnumpy(), online)
        ops.assign(trainer.actor.weight, copy.weight)
