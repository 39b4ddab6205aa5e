"""What static analysis refuses: the line, a caret, the construct, what to write instead."""

import re

import pytest

from mindspore_rl.errors import ProgramError
from tests.graph.programs import analyse_with

UNSUPPORTED = {
    "while": ("while True:\n    pass", "while True:", "`while`"),
    "try": ("try:\n    pass\nfinally:\n    pass", "try:", "`try`"),
    "lambda": ("target = (lambda x: x)(reward)", "lambda x: x", "a lambda"),
    "comprehension": ("target = sum([x for x in (reward, reward)])", "[x for", "a comprehension"),
    "global": ("global THING", "global THING", "`global`"),
    "attribute": ("self.kept = reward", "self.kept", "an assignment to an attribute"),
    "element": ("d = {}\nd['a'] = reward", "d['a']", "an assignment to an element"),
    "early return": ("for i in range(2):\n    return {}", "return {}", "`return` inside a loop"),
    "keyword": ("target = msrl.boundary(name='x', value=reward)", "'x'", "a keyword argument"),
    "unused": ("self.optimizer(reward)", "self.optimizer", "whose result is not used"),
    "unknown name": ("target = ops.abs(rewards)", "rewards)", "unknown name 'rewards'"),
    "loop over": ("for x in (1, 2):\n    target = reward", "(1, 2)", "a loop over something else"),
    "range": ("for i in range(1, 3):\n    target = reward", "range(1", "with a start or a step"),
    "index after": (
        "for i in range(3):\n    target = reward\ntarget = reward * i",
        "i",
        "a loop's index after the loop",
    ),
    "no method": ("msrl.learn(reward)", "msrl.learn", "msrl.learn"),
    "act under if": (
        "if msrl.mean(reward) > 0:\n    a = msrl.agent_act(obs[0])",
        "msrl.agent_act",
        "under a condition",
    ),
    "act in a choice": (
        "m = msrl.mean(reward)\ntarget = reward if m > 0 else msrl.agent_act(obs[0])[0]",
        "msrl.agent_act",
        "one side of `x if c else y`",
    ),
    "inlined in a choice": (
        "m = msrl.mean(reward)\ntarget = m > 0 and (m, self.apply(msrl))",
        "self.apply(msrl)",
        "one side of `x if c else y`",
    ),
    "branches differ": (
        "if msrl.mean(reward) > 0:\n    x = reward\nelse:\n    x = (reward, 1)",
        "if msrl",
        "something else in each branch",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_refused_with_place_and_caret(case, tmp_path):
    code, under, construct = UNSUPPORTED[case]
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, learn=code)
    place, line, caret, hint = str(caught.value).split("\n")[:4]
    assert re.match(r".*program_\w+\.py:\d+: ", place)
    assert construct in place
    assert line[caret.index("^") :].startswith(under)
    assert hint.strip()


@pytest.mark.parametrize(
    "code",
    [
        "x = y = reward\ntarget = x + y",
        "if self.config.extra:\n    k = 2.0\nelse:\n    k = 3.0\ntarget = reward * k",
        "total = 0.0\nfor i in range(3):\n    total += msrl.mean(reward) * i\n"
        "target = reward * total",
        "a, b = reward, 2.0 * reward\na, b = b, a\ntarget = a - b",
        "pair = (msrl.max(reward), 1.0)\nfor i in range(2):\n    pair = (pair[1], pair[0])\n"
        "target = pair[0] * reward",
        "d = {'a/b': reward, 'c': 2}\nd = {**d, 'e': reward}\ntarget = d['a/b'] * d['c'] + d['e']",
        "target = reward.reshape(reward.shape)",
        "rate = self.optimizer.learning_rate\ntarget = reward * rate",
        "n = max(1, len(self.config.env))\ntarget = reward / n",
        "w = reward\nnp = w\nparts = np\ntarget = parts",
        "if msrl.mean(reward) > 0.5 and self.config.extra:\n    target = 2.0 * reward",
        "n, x = 2, None\nfor i in range(2):\n    if self.config.extra:\n        x = reward\n"
        "    else:\n        n = 3\nfor i in range(n):\n    target = x + target",
        "target = reward if msrl.mean(reward) > 0.5 or self.config.extra else 2.0 * reward",
        "target = reward * (msrl.mean(reward) if self.config.extra else msrl.max(reward))",
    ],
)
def test_supported_forms(code, tmp_path):
    analyse_with(tmp_path, learn=code)


def test_a_sample_inside_the_loop_that_inserts_is_refused(tmp_path):
    with pytest.raises(ProgramError, match=r"inside a loop that inserts too(.|\n)*after the loop"):
        analyse_with(
            tmp_path,
            remove=[
                ("                obs = next_obs", "                early = msrl.replay_sample()")
            ],
        )


def test_an_argument_changed_under_a_condition_keeps_its_change(tmp_path):
    cut = analyse_with(
        tmp_path,
        learn="""
        kl = msrl.mean(reward)
        for i in range(2):
            if kl > 0.5:
                target = target * 0.5
        """,
    )
    (branch,) = [
        i
        for loop in cut.program.body
        if hasattr(loop, "body")
        for i in loop.body
        if getattr(i, "kind", "") == "range"
        for i in i.body
        if hasattr(i, "orelse")
    ]
    assert {t for op in branch.body for t in op.targets} == {"target"}
