"""Random algorithms compute under random policies what their plain loops compute.

MSRL_FUZZ=100 runs that many programs in place of a few, from the one numbered MSRL_FUZZ_FROM.
"""

import os
import random

import pytest

from mindspore_rl.errors import ProgramError
from tests.compiler import inproc
from tests.compiler.random_programs import program
from tests.compiler.test_programs import SCATTERED

POLICIES = ("Central", "MultipleLearners", "SingleLearnerCoarse", "SingleLearnerFine", SCATTERED)
COUNT = int(os.environ.get("MSRL_FUZZ", "4"))
FIRST = int(os.environ.get("MSRL_FUZZ_FROM", "1"))
REFUSED = ("in an unrolled loop or comprehension", "after another that a condition may leave out")
"""What programs may be refused for, see docs/add_an_algorithm.md."""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs_equal_the_reference(seed, tmp_path):
    text, rng = program(seed), random.Random(seed)
    file = tmp_path / "random_program.py"
    file.write_text(text)
    policy, workers = rng.choice(POLICIES), rng.randint(1, 3)
    try:
        job = inproc.request(file, policy, workers, num_envs=4, num_steps=4)
        wrong = inproc.differences(job, tmp_path / "job")
    except ProgramError as refusal:
        if not any(form in str(refusal) for form in REFUSED):
            raise
        wrong = []
    assert wrong == [], f"{policy} with {workers} workers:\n{text}"
