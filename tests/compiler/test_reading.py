"""Code that does not compile or draws random numbers is refused when the graph is built."""

import cProfile
import random
import re
import sys

import mindspore as ms
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.graph.api import _cell_graph_executor

from mindspore_rl.compiler.analysis.compiled_ops import SOURCE
from mindspore_rl.errors import ProgramError
from mindspore_rl.mindir.graph import graph_of, read
from mindspore_rl.platform import mindspore_device
from mindspore_rl.purity.calls import watch
from mindspore_rl.purity.in_place import watch_changes
from tests.compiler.programs import analyse_with
from tests.tiers import quick

ACT = """
import random
import time
import numpy as np
from tests.tiers import quick

def luck(x):
    return x * float(np.random.randint(2) >= 0)

class Odd(Act):
    def __init__(self, net):
        super().__init__(net)
        self.n, self.generator = 0, np.random.default_rng(1)

    def act(self, obs, noise):
        {line}
        return super().act(obs, noise)

class Learn("""


def _refused(folder, line):
    """Returns the message about a line in `act`, and the line's number."""
    changed = [("\nclass Learn(", ACT.format(line=line)), ("= Act(net)", "= Odd(net)")]
    with pytest.raises(ProgramError) as caught:
        analyse_with(folder, "GPUOnly", 1, remove=changed)
    text = str(caught.value)
    assert SOURCE not in text
    assert text.startswith(f"{folder}/program_")
    return text


@pytest.mark.parametrize(
    "line",
    quick(
        [
            "obs = obs + float(obs.asnumpy().mean())",
            "self.n += 1",
            "obs = obs + float(np.array(obs).sum())",
        ],
        *(0, 1),
    ),
)
def test_what_does_not_compile_is_told_with_its_line(line, tmp_path):
    text = _refused(tmp_path, line)
    assert "agent_act#1 cannot be compiled" in text
    assert ("write ops.assign(self.n, self.n + 1)" in text) is line.startswith("self.n")
    assert re.search(rf"raised at .*program_\w+\.py:\d+: {re.escape(line)}", text)


def test_glue_that_does_not_compile(tmp_path):
    line = "target = reward * float(reward.asnumpy().size)"
    with pytest.raises(ProgramError, match="glue#1 cannot be compiled.*asnumpy") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, learn=line)
    assert str(caught.value).split("\n")[0].endswith(line)


@pytest.mark.parametrize(
    ("lines", "told"),
    quick(
        [
            (
                "for _, p in self.net.parameters_and_names():\n            ops.assign(p, 0.5 * p)",
                "call parameters_and_names in __init__: self.own = tuple(...)",
            )
        ],
        1,
    ),
)
def test_an_update_that_does_not_compile_is_told_what_to_write(lines, told, tmp_path):
    learn = "    def learn(self, msrl, batch):"
    construct = "    def construct(self, x):\n        return x\n\n"
    again = f"{construct}    def again(self):\n        {lines}\n\n{learn}"
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, "GPUOnly", 1, [(learn, again)], learn="msrl.update(self.again)")
    assert told in str(caught.value)


INSTEAD = {
    "target = target + obs.max(-1)": ("write x.amax(axis)",),
    "target += ops.cat((obs, ops.one_hot(action, 2)), -1).sum(-1)": (".astype(float32)",),
    "target += ops.matmul(ops.one_hot(action, 2), ops.ones((2, 1)))[..., 0]": (".astype(float32)",),
    "target = target + obs.reshape((7, 1, 4)).sum()": ("x.shape[0]",),
    "_, loss = msrl.gradient(lambda o: self.net.value(o), self.net, obs)\n"
    "_, loss = msrl.gradient(lambda o: self.net.value(o), self.net, obs)\n"
    "target = target * (1.0 + ops.exp(loss))": ("`grads, (loss,) = ...`",),
    "target = target - np.ones((4, 8), np.float32)": ("write Tensor(...) around it",),
    "target = reward * max(0.5, 0.1, msrl.mean(reward))\n"
    "target = target * min(1.0, 9.0, msrl.mean(target))": (
        *("ops.maximum in place of max", "ops.minimum in place of min"),  # all at once
    ),
}


@pytest.mark.parametrize("line", INSTEAD)
def test_what_to_write_is_told(line, tmp_path):
    changed = ("from mindspore import nn, ops", "import numpy as np\nfrom mindspore import nn, ops")
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, "GPUOnly", 1, [changed], learn=line)
    assert [told for told in INSTEAD[line] if told not in str(caught.value)] == []
    assert str(caught.value).count("expected its operators on tensors") <= 1


def test_a_parameter_of_another_object_is_assigned_by_an_operator(tmp_path):
    """MindSpore compiles the assignment to a call of Python, which no cell can have."""
    step = "    def move(self, by):\n        self.net.critic.offset += by\n\n    def learn(self"
    made = "self.actor, self.learner = Act(net), Learn(net, config)"
    changed = [
        ("    def learn(self", step),
        (made, f"net.critic.offset = Parameter(ops.zeros((1,)), name='offset')\n        {made}"),
        ("from mindspore import nn", "from mindspore import Parameter, nn"),
    ]
    line = "msrl.update(self.move, msrl.mean(reward))"
    with pytest.raises(ProgramError, match="update#1 calls Python .*ops.assign_add") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, remove=changed, learn=line)
    assert str(caught.value).split("\n")[0].endswith(line)


@pytest.mark.parametrize(
    ("line", "drawn"),
    quick(
        [
            ("obs = luck(obs)", r"numpy\.random\S* at .*program_\w+\.py:\d+:"),
            ("obs = obs * float(self.generator.integers(1, 2))", "numpy.random"),
            ("obs = obs * (random.gauss(0.0, 1.0) < 1e9)", "random.gauss at .*program_"),
            ("obs = obs * (time.time() > 0.0)", "time.time"),
            ("obs = ops.where(ops.rand_like(obs) < 2.0, obs, -obs)", "draws from UniformReal"),
            ("obs = ops.dropout(obs, 0.0)", "draws from Dropout"),
        ],
        *(0, 3, 4),
    ),
)
def test_random_numbers_are_found_whatever_they_are(line, drawn, tmp_path):
    """Each of these returns the same value every time."""
    text = _refused(tmp_path, line)
    assert re.search(drawn, text)
    assert "random numbers come as the noise of `act`" in text


def test_watching_leaves_a_profiler_as_it_was():
    profiler = cProfile.Profile()
    profiler.enable()
    with watch({}) as found:
        random.random()
    try:
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    assert len(found.impure) == 1


HELPERS = """
import functools
import os

COUNT = 0.0

def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2.0 * function(*args)
    return wrapper

@doubled
def decorated(x):
    return x + 1.0

def counted(x):
    global COUNT
    COUNT += 1.0
    return x * (COUNT > 0.0)

class Learn("""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("decorated(reward)", "calls decorated by its decorator of .*program_"),
        ("counted(reward)", r"changes .*\.COUNT: Python keeps that"),
        ("reward * (os.getpid() > 0)", "os.getpid at .*another in each process"),
    ],
)
def test_what_is_no_function_of_its_arguments_is_refused(call, told, tmp_path):
    """Uncompiled: MindSpore's parser refuses nothing here."""
    line = f"target = {call}"
    with pytest.raises(ProgramError, match=told) as caught:
        changed = [("\nclass Learn(", HELPERS)]
        analyse_with(tmp_path, "GPUOnly", 1, changed, compiled=False, learn=line)
    assert str(caught.value).split("\n")[0].endswith(line)


def test_state_that_python_keeps_of_an_update(tmp_path):
    """Other ranks would not receive it, and `learn` is read only once."""
    counting = """
    def apply(self, grads):
        self.calls = self.calls + 1
        super().apply(grads)

    def learn("""
    changed = [
        ("\n    def learn(", counting),
        ("Learn(net, config)\n", "Learn(net, config)\n        self.learner.calls = 0\n"),
    ]
    with pytest.raises(ProgramError, match="update#1 changes trainer.learner.calls"):
        analyse_with(tmp_path, "GPUOnly", 1, changed, compiled=False)


@pytest.mark.parametrize("where", ["\n    def learn(", "\n    def train("])
def test_decorators_of_what_is_read_are_refused(where, tmp_path):
    changed = [("\nclass Learn(", HELPERS), (where, f"\n    @doubled{where}")]
    with pytest.raises(ProgramError, match="decorator of `(learn|train)`, which is read") as caught:
        analyse_with(tmp_path, "GPUOnly", 1, changed)
    assert re.match(r".*program_\w+\.py:\d+: ", str(caught.value))


def _helped(folder, helper, line="target = helped(reward)", **parts):
    """Analyses the template with a helper of the user's, and a line of `learn` that calls it."""
    changed = [("\nclass Learn(", f"\n{helper}\n\nclass Learn(")]
    return analyse_with(folder, "GPUOnly", 1, remove=changed, learn=line, **parts)


IN_PLACE = {
    "def helped(x):\n    x[0] = 0.0\n    return x": r"changes `x` at \S+:\d+ \(x\[0\] = 0.0\)",
    "def helped(x):\n    x = x * 1.0\n    y = x[1:]\n    y[0] = 0.0\n    return x": "changes `y`",
    "import numpy as np\n\ndef helped(x):\n    a = np.ones(3)\n    b = a[1:]\n    b[0] = 2.0\n"
    "    return x * a[1]": r"changes `b` at \S+:\d+ \(b\[0\] = 2.0\)",
    "def helped(x):\n    d = {1: x}\n    e = d\n    e |= {1: -x}\n    return d[1]": "changes `e`",
    "def fill(xs, x):\n    xs.append(x)\n\ndef helped(x):\n    xs = [x]\n    fill(xs, x)\n"
    "    return xs[0] * len(xs)": r"changes `xs` at \S+:\d+ \(xs.append\(x\)\)",
    "def helped(x):\n    x = x * 1.0\n    x.add_(1.0)\n    return x": "elsewhere, by InplaceAdd",
}


@pytest.mark.parametrize("helper", IN_PLACE)
def test_what_is_changed_in_place_for_others_too_is_told(helper, tmp_path):
    with pytest.raises(ProgramError, match=IN_PLACE[helper]) as caught:
        _helped(tmp_path, helper)
    assert str(caught.value).split("\n")[0].endswith("target = helped(reward)")


def _parts_of_a_weight(folder, part):
    """Analyses the template with a method of the learner that takes a part of a weight."""
    head = "\nclass Learn(BaseLearner):"
    method = f"""{head}
    def part(self, x):
        weight = self.net.policy.layers.cell_list[0].weight
        return x + {part}.sum()
"""
    return analyse_with(folder, "GPUOnly", 1, [(head, method)], learn="target = self.part(reward)")


OF_A_LIST = "self.net.policy.layers.cell_list[0].weight"


@pytest.mark.parametrize(
    "part",
    ["weight[:, :2]", "weight[:2]", "weight[0, 1]", f"{OF_A_LIST}[:, :2]", f"[{OF_A_LIST}][0][:2]"],
)
def test_a_slice_of_a_parameter_is_told(part, tmp_path):
    """MindSpore's compiled graph reads it once, also if an update changes the Parameter between."""
    said = (
        r"takes a slice of `\S+weight` at \S+:\d+ \(return x .*, which a compiled cell reads once"
    )
    with pytest.raises(ProgramError, match=said):
        _parts_of_a_weight(tmp_path, part)


def test_rows_of_a_parameter_may_be_taken(tmp_path):
    _parts_of_a_weight(tmp_path, "(weight[0] + ops.narrow(weight, 0, 0, 1) + (1.0 * weight)[:1])")


def test_an_entry_that_an_update_changes_is_told():
    """In Python it changes with its Parameter, which a compiled graph's does not."""
    counts = Parameter(Tensor([1.0, 2.0]), name="counts")

    def change(keep):
        before = counts[0] + 0.0 if keep else counts[0]
        ops.assign(counts, counts + counts[1])
        return counts[0] - before

    for keep in (True, False):
        with watch_changes(sys._getframe()) as (_, told):
            change(keep)
        assert len(told) == 1 - keep


OWN = """
def helped(x):
    total, rows, kept = 0.0, [], {"x": x}
    for k in range(3):
        total += x * k
        rows.append(total)
        kept["x"] = rows[-1]
    y = x * 1.0
    y[0] = kept["x"][0]
    held = y
    held += 1.0
    return y + total + held
"""


def test_what_nobody_else_holds_may_change_in_place(tmp_path):
    _helped(tmp_path, OWN)


def test_sums_of_a_compiled_cell_are_new_arrays(tmp_path):
    """MindSpore's own `x += y` would change an input of the cell and prevent native code."""

    def construct(self, x):
        total = 0.0
        for k in range(3):
            total += x * k
            total += x
            total *= 2.0
        return total, x * 1.0

    cell = type("Sums", (nn.Cell,), {"construct": construct})()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        phase, _ = _cell_graph_executor.compile(cell, ms.ops.ones(3), phase="export.mindir")
    finally:
        mindspore_device.use()
    nodes = read(graph_of(cell, phase)).main.nodes
    assert not any(node.op.startswith("Inplace") for node in nodes)


@pytest.mark.parametrize(
    ("helper", "line", "said"),
    [
        (
            "",
            "s = 12345\nfor k in range(3):\n    s = (s * 1103515245 + 12345) % 2147483648\n"
            "target = reward + 1e-9 * s",
            "an integer becomes 13622895699525, and a compiled cell has 32 bits",
        ),
        (
            "def helped(s, x):\n    return x + 1e-9 * ((s * 1103515245 + 12345) % 2147483648)",
            "for k in range(3):\n    target = helped(k, target)",
            "something else for k = 2 as Python's integers",
        ),
    ],
)
def test_integers_that_outgrow_32_bits_are_told(helper, line, said, tmp_path):
    with pytest.raises(ProgramError, match=said) as caught:
        _helped(tmp_path, helper, line)
    assert re.match(r".*program_\w+\.py:\d+: ", str(caught.value))


def test_integers_that_stay_small_are_left_in_peace(tmp_path):
    line = "n = 1\nfor k in range(8):\n    n = n * 2 + k\n    target = target / (n + 2 ** k)"
    _helped(tmp_path, "", line)
