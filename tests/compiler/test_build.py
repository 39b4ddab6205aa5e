"""Programs that static analysis refuses: the line, a caret, the construct, a fix."""

import ast
import re
import textwrap
from types import SimpleNamespace

import pytest

from mindspore_rl.compiler.frontend.sequences import unroll_ranges
from mindspore_rl.compiler.ir.ir import Branch, paths, walk
from mindspore_rl.errors import ProgramError
from mindspore_rl.jobs.training import tell_left_out
from tests.compiler.programs import analyse_with, build_with
from tests.tiers import quick

REFUSED = {
    "^while True:\n    pass": "`while`",
    "m = msrl.mean(reward)\n^while m > 0.5:\n    m = 0.5 * m": "a `while` without a bound",
    "k, n = 0, 3\n^while k < n:\n    k += 1\n    n += 1": "a `while` without a bound",
    "k = 0\n^while k < msrl.mean(reward):\n    k += 1": "only known at run time",
    "for i in range(2):\n    if msrl.mean(reward) > 0.5:\n"
    "        break\n    a = ^msrl.agent_act(obs[0])": "`break` may end",
    "for i in range(2):\n    a = ^msrl.agent_act(obs[0])\n"
    "    if msrl.mean(reward) > 0.5:\n        break": "`break` may end",
    "k = 0\n^while k < 2:\n"
    "    if msrl.mean(reward) > 0:\n        continue\n    k += 1": "a `while` without a bound",
    "for i in range(2):\n    if msrl.mean(reward) > 0.5:\n"
    "        continue\n    a = ^msrl.agent_act(obs[0])": "under a condition",
    "if msrl.mean(reward) > 0.5:\n"
    "    for a, b in zip(msrl.minibatches(2, (reward,)), msrl.minibatches(2, ^(reward,))):\n"
    "        pass": "msrl.minibatches after another in this line",
    "for a, b in ^zip(msrl.minibatches(2, (reward,)), msrl.minibatches(4, (reward,))):\n"
    "    pass": "`zip` of other numbers of minibatches",
    "^try:\n    pass\nfinally:\n    pass": "`try`",
    "target = (^lambda x: x)(reward)": "a lambda",
    "target = sum([x for x in ^obs[0]])": "a comprehension over",
    "d = ^{x for x in (reward, 2)}": "a comprehension",
    "g = ^(x * reward for x in (1, 2))\nh = reward\ntarget = sum(g)": "a generator that is kept",
    "for x in map(^partial(max, 1.0), (2.0,)):\n    target = x": "a `map` or `filter` by this",
    "for x in zip((1.0, 2.0), ^filter(None, (2.0,))):\n    target = x[1]": "inside another",
    "^global THING": "`global`",
    "^self.kept = reward": "an assignment to an attribute",
    "^reward[0] = 0.0": "an assignment to an element",
    "d = {}\ne = d\n^e |= {'a': reward}": "a change in place",
    "d = [reward]\ne = d\n^e += [reward]": "a change in place",
    "for i in range(2):\n    ^return ()": "the result, which is",
    "^if msrl.mean(reward) > 0:\n"
    "    return {'other': (0.0,)}": "the result, which is something else in",
    "if msrl.max(reward) > 0:\n    if msrl.mean(reward) > 1:\n"
    "        ^return {}\n    target = 2.0 * reward": "`return` inside a loop",
    "if msrl.mean(reward) > 0:\n"
    "    return {'loss': 0.0}\na = ^msrl.agent_act(obs[0])": "under a condition",
    "target = msrl.boundary(name=^'x', value=reward)": "a keyword argument",
    "^self.optimizer(reward)": "whose result is not used",
    "^print(self.apply(reward))": "whose result is not used",
    "^print(msrl.mean(reward))": "whose result is not used",
    "d, e = {'a': 0.0}, {'a': 1.0}\nfor _ in range(3):\n    ^d['a'] += 1.0\n"
    "    d = {'a': 2.0}\n    e = d": "which `e` is too",
    "d = {}\n^self.apply(d)": "`d`, which a function may change in place",
    "def f():\n    ^if msrl.env_steps() < 8:\n        return\n    return {'a': 1.0}\n"
    "m = f()": "the result, which is something else in each branch",
    "def f(o):\n    return o, {'a': 2 * o}\n"
    "g, m = msrl.gradient(^f, self.net, obs)": "`f`, a loss that returns a dictionary",
    "g, m = msrl.gradient(self.loss, self.net, obs, action, more=^target)": "does not take these",
    "^assert self.apply(reward)": "that calls a function of yours",
    "^assert not self.config.extra": "an assertion that fails",
    "for _ in range(3):\n    target = target * ^_": "reading `_`",
    "target = ops.abs(^rewards)": "unknown name 'rewards'",
    "for x in ^obs[0]:\n    target = x": "a loop over this",
    "for k in (1, 2):\n    for i in msrl.epochs(k):\n"
    "        target = target + ^msrl.uniform(8, 1)": "a draw of other loops than in the turn",
    "for k in (1, 2):\n    if k > 1 or msrl.mean(reward) > 0:\n"
    "        for (a,) in msrl.minibatches(2, ^(reward,)):\n"
    "            target = target + msrl.mean(a)": "that one turn of an unrolled loop reaches under",
    "for k in (1, 2):\n    if k < 2 or msrl.mean(reward) > 0:\n"
    "        for (a,) in msrl.minibatches(2, ^(reward,)):\n"
    "            target = target + msrl.mean(a)": "that one turn of an unrolled loop reaches under",
    "for x, y in zip((1, 2), ^obs[0]):\n    target = x": "`zip` of this",
    "for x, y in ^zip((1, 2), (3,), strict=True):\n    target = x": "strict `zip` of 2, 1 parts",
    "for x in (1, 2):\n    if msrl.mean(reward) > x:\n"
    "        break\ntarget = reward * ^x": "`x` behind a loop that `break` or `return` may end",
    "first, ^*others = ops.split(reward, 1)": "of a value whose length is not known now",
    "^a, b, *c = (reward,)": "3 names for 1 value(s)",
    "target = ^[x for x in (reward,) if msrl.mean(x) > 0][0]": "a comprehension with a condition",
    "for a in msrl.minibatches(2, (reward,), steps=^-1):\n    b = a": "segments of -1 steps",
    "for i in ^range(1, 3, 0):\n    target = reward": "in steps of 0",
    "for i in range(1, 3):\n"
    "    target = reward\ntarget = reward * ^i": "a loop's index after the loop",
    "^msrl.learn(reward)": "msrl.learn",
    "target = ^getattr(msrl, 'mean')(reward)": "msrl to `getattr`",
    "if ^hasattr(msrl, 'x'):\n    target = reward": "`hasattr`",
    "target = ^dict(msrl)": "passing msrl to `dict`",
    "target = ^self.net(msrl)": "passing msrl to `self.net`",
    "for o, r in msrl.minibatches(2, ^(obs, {'r': 1.0})):\n"
    "    target = reward": "something that is not a tuple of arrays",
    "for m in msrl.minibatches(2, ^()):\n"
    "    target = reward": "something that is not a tuple of arrays",
    "m = msrl.mean(reward)\n"
    "target = reward if m > 0 else ^msrl.agent_act(obs[0])[0]": "one side of `x if c else y`",
    "m = msrl.mean(reward)\n"
    "target = m > 0 and (m, ^self.apply(msrl))": "one side of `x if c else y`",
    "if msrl.mean(reward) > 0:\n"
    "    obs, action, target = ^msrl.replay_sample()": "under a condition",
    "d = {'a': reward} | ^reward\n"
    "target = d['a']": "`**` or `|` of something that is not a dictionary",
    "^if msrl.mean(reward) > 0:\n"
    "    x = reward\nelse:\n    x = (reward, 1)\ntarget = x[0]": "something else in each branch",
    "w = self.net.critic.layers[0].weight\n"
    "^for i in msrl.epochs(2):\n    msrl.update(self.apply, w)\n"
    "    w = w * 0.5": "`w`, a Parameter here and another value later",
    "pair = (reward, target)\n^for i in msrl.epochs(2):\n"
    "    pair = self.loss(obs, action, pair[0])": (
        "`pair`, 2 parts before the loop and one value at its end"
    ),
    "a = []\nb = a\n^a.append(reward)": "which `b` is too",
    "a = []\nb = (a, 1)\n^a.append(reward)": "which `b` holds too",
    "a = []\n"
    "def f(x):\n    ^x.append(reward)\n    return x[0]\ntarget = f(a)": "in place of `x`, which",
    "a, b = [0.0], [1.0]\nif msrl.mean(reward) > 0:\n    a = b\n^a[0] = reward": "which `b` is too",
    "a, b = [0.0], [1.0]\nfor i in msrl.epochs(2):\n"
    "    ^a[0] = a[0] * 2.0\n    a = b": "which `b` is too",
    "a = [reward]\nfor x in a:\n    ^a.append(x)": "a change of `a` in a loop over it",
    "a = []\nfor (o,) in msrl.minibatches(2, (obs,)):\n"
    "    a.append(o[0])\n    ^a.append((1, 2))": "a part of `a` of another form than the first",
    "a = []\nfor (o,) in msrl.minibatches(2, (obs,)):\n"
    "    a.append(msrl.mean(o))\n    if a[-1] > 0:\n        break\n"
    "target = [2.0 * x for x in ^a][0]": "`a`, a list whose length is known only at run time",
    "d = {'a': 1.0}\nfor k, v in d.items():\n    ^d[v] = v": "a change of `d` in a loop over it",
    "r = {'a': 1.0}\n^if msrl.mean(reward) > 0:\n"
    "    return r\nreturn {**r, 'b': (2.0,)}": "the result, which is something else in",
    "d = {}\nif msrl.mean(reward) > 0:\n"
    "    d['a'] = 1.0\ntarget = len(^d) * reward": "`d['a']`, which a condition that is known only",
    "target = reward * (^x := msrl.mean(reward))": "`:=`",
    "f = [^lambda x: k * x for k in (1, 2)]\n"
    "target = f[0](reward)": "a lambda that uses `k` of a comprehension",
    "n = 0\ndef f(x):\n"
    "    ^nonlocal n\n    n += 1\n    return n * x\ntarget = f(reward)": "`nonlocal` or `global`",
    "def f(x):\n    return ^f(x)\ntarget = f(reward)": "a function that calls itself",
    "^def make(k):\n"
    "    return lambda x: k * x\ntarget = make(2)(reward)": "a function that returns a function",
    "grads, m = msrl.gradient(^lambda o: msrl.mean(o), self.net, obs)": "a loss that calls msrl",
    "grads, m = msrl.gradient(^lambda o: o * rest, self.net, obs)": "the unknown name 'rest'",
    "d = {'a': 1.0}\n^for i in msrl.epochs(2):\n"
    "    d['b'] = (d['a'], i)": "`d`, a dictionary that grows in a loop that reads it",
    "xs = [reward]\ntarget = 2.0 * ^xs.pop()": "`pop` of a list",
    "d = {'a': reward}\ntarget = 2.0 * ^d.pop('a')": "`pop` of a dictionary",
    "xs = [reward, target]\n^for i in msrl.epochs(2):\n    x = xs.pop()": "changes its structure",
    "xs = [reward, target]\n^if msrl.mean(reward) > 0:\n"
    "    xs.pop()\ntarget = xs[-1]": "`xs`, which is something else in each branch",
    "d = {'a': {'a': reward}}\nd = ^d.pop('a')": "`pop` of a dictionary",
    "d = {'a': reward}\n^d.pop('b')": "`pop` of 'b', which is not there",
    "for x in ^sorted([reward, target]):\n    pass": "`sorted` of what is known only at run time",
    "names = sorted(('a', 'b'), key=^lambda k: self.net.critic.layers[0].weight[0, 0])": (
        "a lambda"
    ),
    "d = {}\nfor k in range(2):\n    for (o,) in msrl.minibatches(2, (obs,)):\n"
    "        d[^f'o{k}'] = msrl.mean(o)": "a value that is only known at run time",
    "x = ops.zeros_like(reward)\ny = x\n^x[0] = reward[0]": "an assignment to an element",
    "x = ops.zeros_like(reward)\nfor t in range(2):\n    first = x[0]\n"
    "    ^x[t] = reward[0]": "an assignment to an element",
    "x = ops.zeros_like(reward)\nys = [x]\n^x[0] = reward[0]": "an assignment to an element",
    "x = reward\n^x[0] = reward[1]": "an assignment to an element",
    "x = ops.zeros_like(reward)\n^x[0:2] = reward[0]": "an assignment to an element",
    "z = ops.softplus(reward)\nfor i in range(^reward.sum(0).shape[0]):\n"
    "    target = target * i": "a value that is only known at run time",
    "x = None\n^if msrl.mean(reward) > 0:\n"
    "    x = reward\ntarget = x": "`x`, which is something else in each branch",
    "grads, m = msrl.gradient(self.loss, ^1.0, obs, action, target)": "msrl.gradient by `1.0`",
    "grads, m = msrl.gradient(^reward, self.net, obs)": "`reward` as a function",
    "msrl.update(^self.apply, str)": "a function that uses `str`",
    "for k in (1, 2):\n    for i in msrl.epochs(2):\n        for j in (1, 2):\n"
    "            g, m = ^msrl.gradient(self.loss, self.net, obs, action, target)": (
        "in an unrolled loop"
    ),
}
"""Programs, with a mark where the caret is to be, and the constructs that are told."""


@pytest.mark.parametrize("code", REFUSED)
def test_refused_with_place_and_caret(code, tmp_path):
    with pytest.raises(ProgramError) as caught:
        build_with(tmp_path, learn=code.replace("^", ""))
    place, line, caret, hint = str(caught.value).split("\n")[:4]
    assert re.match(r".*program_\w+\.py:\d+: ", place)
    assert REFUSED[code] in place
    assert line[caret.index("^") :] == code.split("^")[1].split("\n")[0]
    assert hint.strip()


def test_a_run_has_no_break(tmp_path):
    report = "msrl.report(msrl.agent_learn(batch))"
    text = f"{report}\n            if msrl.mean(batch[2]) > 0.5:\n                break"
    with pytest.raises(ProgramError, match=r"`break` in the loop over msrl.iterations\(\)"):
        analyse_with(tmp_path, remove=[(report, text)])


SUPPORTED = (
    "x = y = reward\ntarget = x + y",
    "T, B = reward.shape\ngoing = 0.0 * reward[0]\nreturns = []\nfor t in range(T - 1, -1, -1):\n"
    "    going = reward[t] + 0.9 * going\n    returns.append(going)\n"
    "target = ops.stack(returns[::-1])\nfor t in reversed(range(len(obs))):\n"
    "    target = target * obs[t, :, 0]",
    "first = next(self.net.get_parameters())\ntarget = reward * first.sum()",
    "if self.config.extra:\n    k = 2.0\nelse:\n    k = 3.0\ntarget = reward * k",
    "total = 0.0\nfor i in range(3):\n    total += msrl.mean(reward) * i\ntarget = reward * total",
    "a, b = reward, 2.0 * reward\na, b = b, a\ntarget = a - b",
    "pair = (msrl.max(reward), 1.0)\nfor i in range(2):\n    pair = (pair[1], pair[0])\n"
    "target = pair[0] * reward",
    "d = {'a/b': reward, 'c': 2}\nd = {**d, 'e': reward}\ntarget = d['a/b'] * d['c'] + d['e']",
    "d = {'a': reward} | dict(b=2.0) | {'c': 1}\nd = dict(d, c=target, **{'e': reward})\n"
    "target = d['a'] * d['b'] + d['c'] + d['e']",
    "parts = (reward, 2.0 * reward, target)\na, b = parts[:1] + parts[2:]\n"
    "target = msrl.mean(*(parts[1:] + parts[:1]))[0] * a + b",
    "low, high = msrl.boundary('batch', Pair.of(reward, target))\ntarget = low + high",
    "again, (loss, other) = msrl.boundary(\n"
    "    'gradient', msrl.gradient(self.loss, self.net, obs, action, target))\n"
    "target = target * loss - other",
    "target = reward.reshape(reward.shape)",
    "rate = self.optimizer.learning_rate\ntarget = reward * rate",
    "n = max(1, len(self.config.env))\ntarget = reward / n",
    "w = reward\nnp = w\nparts = np\ntarget = parts",
    "if msrl.mean(reward) > 0.5 and self.config.extra:\n    target = 2.0 * reward",
    "n, x = 2, None\nfor i in range(2):\n    if self.config.extra:\n        x = reward\n"
    "    else:\n        n = 3\nfor i in range(n):\n    target = x + target",
    "target = reward if msrl.mean(reward) > 0.5 or self.config.extra else 2.0 * reward",
    "target = reward * (msrl.mean(reward) if self.config.extra else msrl.max(reward))",
    "for i in range(3):\n    last = 0.9 * target\n    if msrl.mean(last) < 0.5:\n"
    "        break\ntarget = last",
    "for i in range(3):\n    n = 2\n    if not self.config.extra and msrl.mean(reward) > 0:\n"
    "        break\n    for j in range(n):\n        target = 0.9 * target",
    "for i in range(3):\n    if self.config.extra:\n        break\n    target = 0.9 * target",
    "k = 0\nwhile k <= 4:\n    k += 2\n    last = reward\ntarget = last",
    "k = 5\nwhile k < 5 and msrl.mean(reward) > 0:\n    k += 1\n    target = nothing",
    "for i in range(2):\n    k = 0\n    while 3 > k and msrl.mean(reward) > 0:\n        k += 1",
    "first, *others = (reward, 2.0 * reward, target)\na, b = others\ntarget = a + b",
    "*others, last = (reward,)\ntarget = last * len(others)",
    "kept = (reward,)\nfor i in range(2):\n"
    "    a, *kept = (0.5 * reward, *[2.0 * part for part in kept])\ntarget = a + kept[0]",
    "kept = (reward, target)\nlow, *kept = Pair.of(reward, *kept)\ntarget = low + kept[1]",
    "part = 3.0\nfor size in range(2):\n    found = tuple(part * size for part in (reward,))\n"
    "target = found[0] * part",
    "target = reward * max(tuple(2.0 * rate for rate in (self.config.gamma, 1)))",
    "for part, flag in msrl.minibatches(2, (reward, 0.5 * reward), steps=2):\n"
    "    again = msrl.mean(part[:, 1])",
    "for parts in msrl.minibatches(2, (reward, target), steps=2):\n"
    "    again = msrl.mean(parts[0][:, 1]) + msrl.mean(Pair.of(parts[1])[0][:, 0])",
    "_ = x = reward\ntarget = 2.0 * x",
    # Nothing reads these variables after the block, so they are local to it.
    "if msrl.mean(reward) > 0.5:\n    a = msrl.mean(reward)\n    a = reward * a\n"
    "    target = a * 0.5",
    "a = msrl.mean(reward)\nfor i in range(2):\n    a = reward * i\n    target = a * 0.5",
    "for k in range(2):\n    for i in range(2):\n        if msrl.mean(reward) > 0.5:\n"
    "            a = reward * i\n            target = a * 0.5\n"
    "    if msrl.mean(reward) > 0.2:\n        a = msrl.max(reward)\n        target *= a",
    "if msrl.mean(reward) > 0.5:\n    a = msrl.mean(reward)\n    target = a * reward\n"
    "if msrl.mean(reward) > 0.2:\n    a = 2.0 * reward\nelse:\n    a = reward\ntarget = a",
    "for _ in range(2):\n    if msrl.mean(reward) > 0.5:\n"
    "        last, _ = target, 0.5 * reward\n        target = 0.9 * last",
    "(alone,) = Pair.of(reward)\ntarget = alone",
    "names, d = ('a', 'b'), {'a': reward, 'b': target}\nfor place, name in enumerate(names):\n"
    "    target = target + place * d[name]",
    "total = 0.0\nfor name, (part, k) in {'a': (reward, 2.0), 'b': (target, 3)}.items():\n"
    "    total = total + part * k\ntarget = total",
    "target = sum(k * part for k, part in zip((1.0, 2.0, 3.0), (reward, target)))",
    "grid = [reward * i + j for i in range(3) if i != 1 for j in range(i + 1)]\n"
    "target = sum(grid) + grid[-1]",
    "d = {name: k * reward for k, name in enumerate(('a', 'b'), 1)}\ntarget = d['a'] + d['b']",
    "parts = (reward, target)\nfor i in range(len(parts) + 1):\n    target = target + i\n"
    "assert len(parts) == 2 and len({'a': reward}) + len(parts) == 3",
    "for part in reversed([reward, target]):\n    if not self.config.extra:\n        break\n"
    "    last = part\ntarget = last",
    "for k in (1.0, 2.0, 3.0):\n    if msrl.mean(target) > 0.5 * k:\n        break\n"
    "    target = target + k\ntarget = 2.0 * target",
    "for i in range(2):\n    for part in ():\n        last = part\n"
    "    for part in (target, reward):\n        last = part\n    target = last * i",
    "for k in range(3, 0, -1):\n    if msrl.mean(target) > k:\n        continue\n"
    "    target = target * k",
    "if msrl.mean(reward) > 0.5:\n    return {'loss': 0.0}",
    "kept = ()\nfor (part,) in msrl.minibatches(2, (reward,), steps=2 if kept else 0):\n"
    "    last = part",
)
ALONE = [c for c in SUPPORTED if "minibatches" in c or "gradient" in c or "return" in c]
TOGETHER = [code for code in SUPPORTED if code not in ALONE]


def _together(codes):
    """Returns one program text of several, each with variables of its own."""
    parts = []
    for number, code in enumerate(codes):
        tree = ast.parse(code)
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _is_stored(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in names - {"target", "_"}:
                node.id += f"_{number}"
        parts += ["target = reward", ast.unparse(tree)]
    return "\n".join(parts)


@pytest.mark.parametrize(
    ("body", "unrolled"),
    [
        ("xs = [a, b]\nfor i in range(2):\n    x = xs[i]", True),
        ("xs = [a, b]\nxs = ops.stack(xs)\nfor i in range(2):\n    x = xs[i]", False),
        ("if c:\n    xs = [a, b]\nfor i in range(2):\n    x = xs[i]", True),
        ("xs = [a, b]\nif c:\n    xs = a\nfor i in range(2):\n    x = xs[i]", True),
        ("for i in range(2):\n    x = xs[i]\nxs = [a, b]", False),
        ("xs = a\nfor k in range(2):\n    for i in range(2):\n        x = xs[i]\n"
         "    xs = [a, b]", True),
        ("for k in range(2):\n    xs = a\n    for i in range(2):\n        x = xs[i]\n"
         "    xs = [a, b]", False),
    ],
)  # fmt: skip
def test_a_loop_is_unrolled_if_its_index_picks_from_a_list(body, unrolled):
    """It sees what was assigned last to the name, also in an earlier turn of a loop around it."""
    tree = ast.parse(f"def learn(self):\n{textwrap.indent(body, '    ')}").body[0]
    unroll_ranges(tree, SimpleNamespace(names={}, is_msrl=lambda node: False))
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For) and n.target.id == "i"]
    assert [hasattr(loop, "by_index") for loop in loops] == [unrolled]


def _is_stored(name):
    return isinstance(name.ctx, ast.Store)


@pytest.mark.parametrize(
    "code", quick([*map(_together, (TOGETHER[::2], TOGETHER[1::2])), *ALONE], 0, 1, 2)
)
def test_supported_forms(code, tmp_path):
    start = "from tests.compiler.test_build import Pair\nclass Learn"
    analyse_with(tmp_path, learn=code, remove=[("class Learn", start)])


TOLD = """
LOG.warning("rewards %s", reward.shape)
m = msrl.mean(reward)
assert len(batch) == 3 and self.config.extra, "known now"
for i in range(2):
    print(f"{i}: {float(m):.2f}", reward.mean().item())
if m > 9.0:
    assert False
assert m < 10.0
"""


def test_lines_that_only_tell_something_are_left_out_and_named(tmp_path, capsys):
    start = [("class Learn", "import logging\n\nLOG = logging.getLogger()\n\nclass Learn")]
    program = analyse_with(tmp_path, learn=TOLD, remove=start).program
    told = ["LOG", "print", "assert", "assert"]
    assert [re.match(r"\w+", where.text.strip())[0] for where in program.left_out] == told
    assert not any("float(" in text for op, _ in walk(program.body) for text in op.args)
    tell_left_out(program)
    assert capsys.readouterr().err.count("is left out: the loop is read, not run") == len(told)


def test_segments_must_fit(tmp_path):
    code = "for a in msrl.minibatches(2, (reward,), steps=3):\n    target = a"
    with pytest.raises(
        ProgramError, match=r"2 minibatches of segments of 3 of 4 .*segments of 2\)"
    ):
        analyse_with(tmp_path, learn=code)


class Pair:
    """A class that programs call."""

    @staticmethod
    def of(*parts):
        return tuple([2.0 * part for part in parts])


class Holder:
    """A constant that is not a number."""

    def __init__(self, *parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts)


PARTS = {"some": (64, 64), "none": (), "teams": Holder(1), "no_teams": Holder()}
CONDITIONS = {
    "kept = (reward,)\nif kept:\n    target = 2.0 * reward": True,
    "kept = ()\nif kept:\n    target = 2.0 * reward": False,
    "kept = ()\nif not kept and self.config.env:\n    target = 2.0 * reward": True,
    "if PARTS['some']:\n    target = 2.0 * reward": True,
    "if PARTS['none']:\n    target = 2.0 * reward": False,
    "if PARTS['teams']:\n    target = 2.0 * reward": True,
    "if not PARTS['no_teams']:\n    target = 2.0 * reward": True,
    "if PARTS['no_teams'] and msrl.mean(reward) > 0.5:\n    target = 2.0 * reward": False,
    "if PARTS['teams'] or msrl.mean(reward) > 0.5:\n    target = 2.0 * reward": True,
    "target = 2.0 * reward if PARTS['teams'] else reward": True,
    "target = 2.0 * reward if msrl.mean(reward) > 0.5 or PARTS['teams'] else reward": True,
    "if msrl.mean(reward) > 0.5 and PARTS['no_teams']:\n    target = 2.0 * reward": False,
    "m = msrl.mean(reward)\nif not (m > 0.5 and (m > 0.9 or PARTS['teams']) or True):\n"
    "    target = 2.0 * reward": False,
    "target = (2.0 * reward if PARTS['no_teams'] else reward) * 1.0": False,
}


@pytest.mark.parametrize("code", CONDITIONS)
def test_a_condition_known_now_leaves_no_branch(code, tmp_path):
    start = "from tests.compiler.test_build import PARTS\nclass Learn"
    program = build_with(tmp_path, learn=code, remove=[("class Learn", start)])
    glue = [op.args[0] for op, _ in walk(program.body) if op.kind == "glue"]
    assert not any(isinstance(item, Branch) for item, _ in paths(program.body))
    assert any("2.0 *" in text for text in glue) == CONDITIONS[code]
    assert not any(" if " in text for text in glue)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("target = self.config.gamma or reward", "0.97"),
        ("target = self.config.extra and self.config.gamma", "0.97"),
        ("target = 0.0 or reward", "transition_reward"),
        ("target = reward * (0.5 or msrl.mean(reward))", "* 0.5"),
        ("target = reward * (PARTS['teams'] and 0.5)", "* 0.5"),
        ("target = reward * ((PARTS['some'] or msrl.mean(reward))[0])", "(64, 64)[0]"),
        ("m = msrl.mean(reward)\ntarget = reward * (m and True)", "both(m, True)"),
        ("m = msrl.mean(reward)\ntarget = reward * (m and 1.0 and 0.5)", "both(m, 0.5)"),
        ("m = msrl.mean(reward)\ntarget = reward * (m or 0.5)", "either(m, 0.5)"),
    ],
)
def test_and_or_give_what_python_gives(code, value, tmp_path):
    start = "from tests.compiler.test_build import PARTS\nclass Learn"
    code += "\ntarget = reward * 0.0 + target"
    program = build_with(tmp_path, learn=code, remove=[("class Learn", start)])
    assert any(value in text for op, _ in walk(program.body) for text in op.args)
    assert not any(text == "True" for op, _ in walk(program.body) for text in op.args)


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


@pytest.mark.parametrize(
    ("owner", "kept"),
    [
        ("self", "[Net(config, spec)]"),
        ("self", "{'old': (Net(config, spec),)}"),
        ("self.learner", "{Net(config, spec)}"),
        ("self", "[Parameter(0.5 * ops.ones(3))]"),
    ],
)
def test_what_no_checkpoint_would_have_is_told(owner, kept, tmp_path):
    made = "self.actor, self.learner = Act(net), Learn(net, config)"
    changed = [
        (made, f"{made}\n        {owner}.kept = {kept}"),
        ("from mindspore import nn", "from mindspore import Parameter, nn"),
    ]
    with pytest.raises(ProgramError, match="keep it in an attribute of one of the two") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, remove=changed)
    line = r"self\.kept = " if owner == "self" else r"class Learn\("
    assert re.match(rf"\S+\.py:\d+: {line}", str(caught.value))


def test_two_learners_that_none_holds_are_refused(tmp_path):
    made = "self.actor, self.learner = Act(net), Learn(net, config)"
    changed = [(made, f"{made}\n        self.learner = (self.learner, Learn(net, config))")]
    with pytest.raises(ProgramError, match=r"is a tuple; (.|\n)*self\.learner\.second = "):
        analyse_with(tmp_path, "GPUOnly", 1, remove=changed)


def test_the_line_that_keeps_a_network_in_a_set_is_told(tmp_path):
    start = "    def __init__(self, net, config):\n        super().__init__(net, config)\n"
    line = "self.targets = {nn.Dense(2, 2)}"
    changed = [("    def learn(self", f"{start}        {line}\n\n    def learn(self")]
    with pytest.raises(ProgramError, match="`self.targets` holds a network") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, remove=changed)
    assert str(caught.value).split("\n")[0].endswith(line)


def test_lists_of_what_a_checkpoint_has_are_left_in_peace(tmp_path):
    made = "self.actor, self.learner = Act(net), Learn(net, config)"
    kept = "self.learner.kept = [net, *net.trainable_params()]"
    cells = "self.learner.olds = [Net(config, spec)]"
    changed = [(made, f"{made}\n        {kept}\n        {cells}")]
    analyse_with(tmp_path, "GPUOnly", 1, remove=changed)


def test_a_name_that_is_free_again_says_nothing_about_what_it_held(tmp_path):
    """The product and then the comprehension are `value` before they get their own names."""
    learn = (
        "grads, _ = msrl.gradient(self.loss, self.net, obs, action, target)\n"
        "twice = 2.0 * reward\n"
        "zeros = [ops.zeros_like(g) for g in grads]\n"
        "total = [z + g for z, g in zip(zeros, grads)]\n"
        "target = twice + 0.0 * sum(g.sum() for g in total)"
    )
    build_with(tmp_path, learn=learn)
    maybe = ("    def learn", "    def maybe(self, x):\n        return None\n\n    def learn")
    learn = "twice = 2.0 * reward\nm = self.maybe(reward)\nif m is None:\n    target = twice"
    program = build_with(tmp_path, [maybe], learn=learn)
    assert any("m is None" in op.args for op, _ in walk(program.body))


@pytest.mark.parametrize(
    ("learn", "hint"),
    [
        (
            "m = {}\nfor k in msrl.epochs(2):\n    m |= {'a': (reward,)}\n    x = m['a']",
            "a dictionary that grows .*\n.*\n.*\n.*all its keys before the loop: m .= {'a': 0.0}",
        ),
        (
            "part = reward[1:]\nfor t in range(part.shape[0]):\n    target = target + part[t]",
            r"(?s)known at run time.*or the configuration's number, self.config.num_steps",
        ),
        ("import math\ntarget = reward", "`import`(.|\n)*at the top of the file"),
        (
            "for _ in (1, 2):\n    for _ in msrl.epochs(2):\n        for _ in (1, 2):\n"
            "            noise = msrl.uniform(16, self.config.seed)",
            r"`noise = msrl.uniform\(16, n \* self.config.seed\)`, whose part i",
        ),
        (
            "s = reward.sum()\nif msrl.mean(reward) > 0:\n"
            "    s = self.net.policy.layers.cell_list[0].bias\ntarget = reward + s.sum()",
            "it is a Parameter in one of them, .*: write 1.0 \\* parameter",
        ),
    ],
)
def test_what_to_write_instead_is_told(learn, hint, tmp_path):
    with pytest.raises(ProgramError, match=hint):
        build_with(tmp_path, learn=learn)
