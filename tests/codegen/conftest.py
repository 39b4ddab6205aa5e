import sys
from pathlib import Path

import pytest

from mindspore_rl.platform import toolchain

sys.path.insert(0, str(Path(__file__).parent))  # for units.py and programs.py


@pytest.fixture(scope="session")
def levels():
    """The widest vectors of this processor."""
    return toolchain.level()
