"""A loss that takes one record and tells what its rows gave, and keyword arguments of `act`."""

import pytest

from mindspore_rl.errors import ProgramError
from tests.compiler import inproc
from tests.compiler.programs import analyse_with
from tests.tiers import quick


@pytest.mark.parametrize("policy", quick(["MultipleLearners", "Central"], 0))
def test_a_program_of_fields_is_its_plain_loop(policy, tmp_path):
    job = inproc.request(inproc.PROGRAMS / "fields.py", policy, 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


CALL = "action = msrl.agent_act(obs)"
REFUSED = {
    "act": (CALL, "action = msrl.agent_act(obs, left=1.0)", "unexpected keyword"),
    "twice": (CALL, "action = msrl.agent_act(obs, obs=obs)", "multiple values"),
    "stars": (CALL, "action = msrl.agent_act(obs, **obs)", "`**` in a call of msrl.agent_act"),
    "rows": ("action, target)", "action, target, row=True)", "the argument 'row' of msrl.gradient"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_keyword_is_refused(case, tmp_path):
    old, new, message = REFUSED[case]
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, remove=[(old, new)])
    assert message in str(caught.value)
    assert new.splitlines()[-1].strip() in str(caught.value)
