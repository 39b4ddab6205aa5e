"""The tiers of tests, see docs/contributing.md."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *places: int) -> list[Any]:
    """Marks the cases of a test slow, except those at some positions."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if place in places else pytest.mark.slow,
        )
        for place, case in enumerate(cases)
    ]
