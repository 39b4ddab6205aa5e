"""Sums over steps start as arrays of the shape of what is added."""

import ast

import pytest

from mindspore_rl.compiler.frontend.step_sums import sums_of_steps

LOOP = """
for _ in msrl.steps():
    obs, final_obs, reward, terminated, _ = msrl.env_step(action)
    team = reward.mean(-1)
    total += {}
"""


@pytest.mark.parametrize(
    ("added", "agents"),
    [
        ("reward", True),
        ("msrl.joint(reward) * 0.5", True),
        ("team", False),
        ("ops.square(reward).sum(axis=1)", False),
        ("team * terminated.astype('float32')", False),
        ("reward.mean(0)", None),
        ("reward.mean()", None),
        ("reward.mean(-1, keep_dims=True)", None),
        ("reward * terminated", None),
        ("obs", None),
    ],
)
def test_agents_are_kept_or_left_out(added, agents):
    (loop,) = ast.parse(LOOP.format(added)).body
    assert sums_of_steps(loop, "msrl", teams=True).get("total") is agents
