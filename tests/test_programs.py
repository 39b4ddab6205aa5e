"""Files of algorithms and policies, loaded by path."""

import pytest

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
