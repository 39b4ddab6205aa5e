"""The loop as people write it: losses inside `learn`, networks in lists, lists that grow."""

import re

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler.analysis.trainer import make_trainer
from mindspore_rl.compiler.ir.ir import Branch, paths, walk
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import ProgramError
from mindspore_rl.rl.parameters import named_parameters
from tests.compiler import inproc
from tests.compiler.programs import build_with, program_with
from tests.tiers import quick

FROM = (
    "from mindspore import nn, ops",
    "from functools import partial\nfrom typing import Any, NamedTuple\n"
    "from mindspore import nn, ops\nclass Pair(NamedTuple):\n    a: Any\n    b: Any\n"
    "def shrink(parameters, by):\n    for p in parameters:\n        ops.assign(p, by * p)\n",
)


@pytest.mark.parametrize("policy", quick(["MultipleLearners", "Central"], 0))
def test_an_ensemble_is_its_plain_loop(policy, tmp_path):
    job = inproc.request(inproc.PROGRAMS / "ensemble.py", policy, 2, num_steps=4, num_envs=4)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.parametrize("policy", quick(["MultipleLearners", "Central"], 0))
def test_losses_see_their_names_at_the_call_and_means_may_be_unread(policy, tmp_path):
    """The comparison takes what the job reads: `grads, _ = msrl.gradient(...)`.

    Under Central only the server then has the sum of a gradient.
    """
    code = """
        losses = []
        for k in (1.0, 2.0):
            def loss(obs, action, goal):
                return self.loss(obs, action, goal * k)
            losses.append(lambda o, a, g: self.loss(o, a, g * k))
            g, _ = msrl.gradient(loss, self.net, obs, action, target)
            msrl.update(self.apply, g)
        g, _ = msrl.gradient(losses[0], self.net, obs, action, target)
        msrl.update(self.apply, g)
        """
    job = inproc.request(program_with(tmp_path, learn=code), policy, 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


def test_what_learn_gets_beside_the_batch_has_its_mark(tmp_path):
    learn = ("learn(self, msrl, batch)", "learn(self, msrl, batch, last)")
    call = ("agent_learn(batch)", "agent_learn(batch, obs)")
    code = "target = target + 0.1 * self.net.value(last)"
    program = program_with(tmp_path, (learn, call), learn=code)
    job = inproc.request(program, "SingleLearnerCoarse", 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


REST = """
def rest():
    grads, (loss, *others) = msrl.gradient(self.loss, self.net, obs, action, target)
    msrl.update(self.apply, grads)
    return (loss, *others)
loss, *others = rest()
target = target + 0.1 * others[0] + loss
grads, means = msrl.gradient(self.loss, self.net, obs, action, target)
msrl.update(self.apply, grads)
first, *more = means
target = target + sum(more) + first
"""


def test_the_other_values_of_a_loss_are_one_tuple(tmp_path):
    job = inproc.request(program_with(tmp_path, learn=REST), "MultipleLearners", 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


LOOPS = """
    losses, history = [], {"mean": [], "two": []}

    def step(grads):
        self.optimizer(grads)

    def epoch(first):
        for k, (o, a, t) in enumerate(msrl.minibatches(2, (obs, action, target)), first):
            grads, (loss, _) = msrl.gradient(self.loss, self.net, o, a, t)
            norm = ops.sqrt(sum(ops.square(g).sum() for g in grads))
            msrl.update(step, [g / ops.maximum(norm, 1.0) for g in grads])
            losses.append(loss)
            if loss > 1e6:
                return k, loss
            if loss < -1e6:
                return -1, loss
        msrl.update(shrink, self.net.trainable_params(), 0.9)
        return k + 10, loss

    for i in range(3):
        count, loss = epoch(1)
        history["mean"].append(sum(losses) / len(losses))
        history["two"].append((loss, count * 1.0))
        if msrl.mean(target) < 0.0 and not i < 1:
            break
    else:
        loss = 0.5 * loss
    means = {name: values[-1] for name, values in history.items()}
    (last, count), target = means["two"], target * min(losses) * max(history["mean"])
    """


def test_loops_that_return_and_lists_that_grow_in_them(tmp_path):
    """Also updates by functions inside and outside `learn`, `enumerate` of minibatches, `else`."""
    end = ('"loss": means[0]', '"loss": means[0], "last": last + loss, "count": count')
    job = inproc.request(
        program_with(tmp_path, [FROM, end], learn=LOOPS), "MultipleLearners", 2, num_steps=4
    )
    assert inproc.differences(job, tmp_path) == []


FITS = """
    losses = []
    for fit in range(2):
        goal = target * (fit + 1.0)
        for epoch in range(3):
            g, (loss, _) = msrl.gradient(self.loss, self.net, obs, action, goal)
            msrl.update(self.apply, g)
        losses.append(loss)
    target = target * losses[-1] + sum(losses) / len(losses)
    """


def test_a_list_grows_in_a_loop_around_one_with_a_gradient(tmp_path):
    """The outer loop was unrolled, for the list, and the gradient then refused."""
    file = program_with(tmp_path, learn=FITS)
    job = inproc.request(file, "MultipleLearners", 2, num_steps=4, num_envs=4)
    assert inproc.differences(job, tmp_path) == []


DRAWS = """
    for again in range(2):
        for k, scale in enumerate((1.0, 2.0, 3.0)):
            chance = msrl.uniform(8, 2)
            seen, done, goal = msrl.replay_sample(8)
            for i in range(2):
                goal = scale * goal * chance[:, 0] + i
                g, _ = msrl.gradient(self.loss, self.net, seen, done, goal)
                msrl.update(self.apply, g)
                target = target + msrl.mean(msrl.uniform(4, 1)) * scale
    """


def test_each_turn_of_an_unrolled_loop_draws_numbers_of_its_own(tmp_path):
    """Ensembles of models; a loop over `range` with gradients in it was refused, too."""
    keep = "msrl.replay_insert(obs, action, reward, keep=64)"
    file = program_with(tmp_path, learn=DRAWS, loop=keep)
    job = inproc.request(file, "MultipleLearners", 2, num_steps=4, num_envs=4)
    assert inproc.differences(job, tmp_path) == []


def test_records_of_one_value_are_unpacked(tmp_path):
    """On ranks, the value was a tuple of one array."""
    row = '(ops.cat((obs, ops.stack((action.astype("float32"), reward), 1)), 1),)))'
    parts = 'rows[..., :4], rows[..., 4].astype("int32"), rows[..., 5]'
    changed = [
        ("(obs, action, reward)))", row),
        ("obs, action, reward = batch", f"(rows,) = batch\n        obs, action, reward = {parts}"),
    ]
    learn = "(kept,) = msrl.replay_sample(8)\ntarget = target + msrl.mean(kept)"
    file = program_with(tmp_path, changed, learn=learn, loop="msrl.replay_insert(reward, keep=32)")
    job = inproc.request(file, "MultipleLearners", 2, num_steps=4, num_envs=4)
    assert inproc.differences(job, tmp_path) == []


SIZES = """
    T, B = reward.shape
    n = T * B
    shape = obs.shape[:2]
    for scale in (1.0, 2.0):
        target = target.reshape(-1)
        (rows,) = target.shape
        target = target.reshape((rows // B, B)) * scale
    flat = obs.reshape(n, -1)
    target = target + self.net.value(flat).reshape(shape) / T
    """


def test_a_size_that_has_a_name_is_that_of_the_replica(tmp_path):
    """Several learners refused it, and a compiled one got an array in place of the number."""
    file = program_with(tmp_path, learn=SIZES)
    job = inproc.request(file, "MultipleLearners", 2, num_steps=4, num_envs=4)
    assert inproc.differences(job, tmp_path) == []


def test_a_replica_takes_its_rows_of_an_array_made_of_numbers(tmp_path):
    """The state of a memory, and a scan's first value, were refused with several replicas."""
    head, insert = "for _ in msrl.iterations():", 'msrl.replay_insert(*msrl.boundary("tr'
    made = "ops.zeros((self.config.num_envs, obs.shape[-1] // 2))"
    changed = [
        (head, f"memory = {made}\n        {head}"),
        (insert, f"memory = 0.5 * memory + obs[:, :2]\n                {insert}"),
        ("(obs, action, reward)))", "(obs, action, reward + memory.sum(-1))))"),
    ]
    learn = """
        place = ops.arange(self.config.num_envs)
        last = ops.zeros(self.config.num_envs)
        for t in range(4):
            last = reward[t] + 0.9 * last
        target = target + last + place
        """
    file = program_with(tmp_path, changed, learn=learn)
    job = inproc.request(file, "MultipleLearners", 3, num_steps=4, num_envs=4)
    assert inproc.differences(job, tmp_path) == []


def test_networks_in_containers_have_the_names_of_a_cell_list(tmp_path):
    made = "self.actor, self.learner = Act(net), Learn(net, config)"
    lines = [
        "nets, self.learner.nets = [Net(config, spec) for _ in range(2)], []",
        "self.learner.nets.extend(nets)",  # after it became an attribute
        "self.actor.parts = {'a': (nn.Dense(2, 2),), 'scale': [Parameter(ops.ones(3))]}",
        "self.learner.optimizers = tuple(nn.Adam(n.trainable_params(), 0.1) for n in nets)",
        "self.learner.pairs = [nets[0].trainable_params()]",
    ]
    changed = [
        (made, "\n        ".join([made, *lines])),
        ("from mindspore import nn", "from mindspore import Parameter, nn"),
    ]
    trainer = _made(programs.trainer_class(program_with(tmp_path, changed)))
    found = named_parameters(trainer, "state")
    names = [name for name, _ in found]
    assert {"actor.parts.a.0.weight", "actor.parts.scale.0"} <= {*names}
    kept = {id(parameter) for _, parameter in found}
    assert all(id(p) in kept for net in trainer.learner.nets for p in net.get_parameters())
    assert not any(name.startswith("learner.pairs") for name in names)
    moments = [name for name in names if ".moment1." in name]
    assert any(name.startswith("learner.optimizers.1.") for name in moments)
    assert len({parameter.name for _, parameter in found}) == len(found)


def _made(cls):
    config = cls.Config()
    return make_trainer(cls, config, spec(config.env))


FILLED = """
    metrics, weight = {"first": 0.0}, self.net.critic.layers[0].weight
    for k in reversed(range(3)):
        for (o,) in msrl.minibatches(2, (obs,)):
            metrics |= {"mean": msrl.mean(o) * (k + 1.0), "first": 1.0}
            metrics["turn"] = 1.0 * k
        metrics.update(last=k + 1.0)
    for k in reversed(range(1, 8, 3)):
        for (o,) in msrl.minibatches(2, (obs,)):
            target = target + k * msrl.mean(o)
    if metrics["turn"] < 1.0:
        weight = weight * 0.5
    msrl.update(self.counts.add, msrl.mean(reward))
    target = target * weight.mean() + metrics["last"] * self.counts.seen(2.0)
    """
COUNTS = """
class Counts:
    def __init__(self):
        self.table = Parameter(ops.zeros(2), name="table", requires_grad=False)
        self.parts, self.itself = {"net": nn.Dense(2, 2)}, self

    def add(self, number):
        ops.assign_add(self.table, number * ops.ones(2))

    def seen(self, scale):
        return scale * self.table.sum()

class Learn(BaseLearner):
"""


def test_dictionaries_filled_in_loops_reversed_loops_and_objects_with_parameters(tmp_path):
    made = "self.actor, self.learner = Act(net), Learn(net, config)"
    changed = [
        ('{"loss": means[0]}', '{"loss": means[0], **metrics}'),
        ("from mindspore import nn", "from mindspore import Parameter, nn"),
        ("class Learn(BaseLearner):\n", COUNTS),
        (made, f"{made}\n        self.learner.counts = Counts()"),
    ]
    file = program_with(tmp_path, changed, learn=FILLED)
    trainer = _made(programs.trainer_class(file))
    names = [name for name, _ in named_parameters(trainer, "state")]
    assert {"learner.counts.table", "learner.counts.parts.net.weight"} <= {*names}
    job = inproc.request(file, "MultipleLearners", 2, num_steps=4)
    reference = inproc.run_reference(job, tmp_path / "reference")
    assert inproc.run_and_compare(job, reference, tmp_path / "run") == []


def test_an_update_in_the_loop_over_iterations(tmp_path):
    """`msrl.update(f)` is no change of a dictionary that the loop goes over."""
    sample = 'batch = msrl.boundary("batch", msrl.replay_sample())'
    update = f"{sample}\n            msrl.update(lambda: None)"
    program = build_with(tmp_path, [(sample, update)])
    assert [op.kind for op, _ in walk(program.body)].count("update") == 2


def test_a_list_of_steps_is_told_to_be_the_replay(tmp_path):
    memory = [FROM, ("for step in", "memory = []\n            for step in")]
    with pytest.raises(ProgramError, match=r"msrl.replay_insert\(Pair\(obs, reward\)\)"):
        build_with(tmp_path, memory, loop="memory.append(Pair(obs, reward))")


READ = {
    "append": "xs = []\nfor x in (reward, target):\n    xs.append(x)\ntarget = xs[1]",
    "append by index": "xs = []\nfor i in range(2):\n    xs.append(reward * i)\ntarget = xs[1]",
    "insert": "xs = [reward]\nxs.insert(0, target)\ntarget = xs[0] - 2.0 * xs[1]",
    "extend": "xs = [reward]\nxs.extend((target, reward))\ntarget = xs[2]",
    "entry": "d = {}\nd['a'] = reward\nd['a'] *= 2.0\ntarget = d['a']",
    "entry of a list": "xs = [0.0] * 2\nxs[1] = reward\ntarget = xs[-1]",
    "update": "d = {}\nd.update(a=reward)\nd |= {'b': target}\ntarget = d['a'] + d['b']",
    "entry in a loop": "d = {'a': 0.0}\nfor i in range(3):\n    d['a'] += 1.0\ntarget *= d['a']",
    "a copy": "xs = [reward]\nys = list(xs)\nys.append(target)\ntarget = xs[0] + ys[1]",
    "walrus": "if (n := 2) > 1:\n    target = n * reward",
    "walrus first": "target = (x := 2.0 * reward) + x",
    "nested def": "def twice(x, by=2.0):\n    y = by * x\n    return y\ntarget = twice(reward)",
    "lambda": "twice = lambda x: 2.0 * x\ntarget = 1.0 + twice(reward)",
    "partial of a lambda": "f = partial(lambda a, x: a * x, 2.0)\ntarget = f(reward)",
    "objects by name": "net = self.net\ntarget = net.value(obs)",
    "objects in a tuple": "nets = (self.net, self.net)\ntarget = nets[1].value(obs)",
    "function of msrl": "centre = lambda x: x - msrl.mean(x)\ntarget = centre(reward)",
    "not None": "m = msrl.mean(reward)\ntarget = reward - m if m is not None else reward",
    "extended": "xs = [reward]\nxs += [target]\ntarget = xs[1]",
    "list of an entry": "d = {'a': []}\nd['a'].append(reward)\ntarget = d['a'][0]",
    "entries of its loop": "d = {'a': 1.0, 'b': 2.0}\nfor k, v in d.items():\n    d[k] = v * 2\n"
    "for k in d:\n    d[k] += 1.0\ntarget = reward * d['b']",
    "parts of its loop": "xs = [reward, target]\nfor i, x in enumerate(xs):\n    xs[i] = 2 * x\n"
    "target = xs[1]",
    "map": "xs = tuple(map(lambda x, y: x * y, (reward, target), (2.0, 3.0)))\ntarget = xs[1]",
    "star of a generator": "a, b = Pair(*(2.0 * x for x in (reward, target)))\ntarget = a",
    "fields by name": "pair = Pair(reward, target)\n"
    "d = {n: getattr(pair, n) for n in pair._fields}\n"
    "pair = Pair(**{**pair._asdict(), **d})\ntarget = pair.b",
    "any and all": "if any([self.config.extra, True]) and all(x for x in (1, 2)):\n"
    "    target = reward",
    "sorted": "for name in sorted({'b': 1, 'a': 2}):\n    target = reward",
    "reversed in place": "xs = [reward]\nxs.append(target)\nxs.reverse()\ntarget = xs[1]",
    "a helper that gets a record": "def twice(pair):\n    return 2.0 * pair.a\n"
    "target = twice(Pair(reward, target)) + self.scaled(Pair(reward, b=target))",
    "entries beside names": "d = {}\n_, (d['a'], d['b']) = msrl.gradient(self.loss, self.net, obs, "
    "action, target)\ntarget = reward * d['b']",
    "update by an operator": "msrl.update(ops.assign, self.net.trainable_params()[0], 0.0)",
    "zip of means": "_, m = msrl.gradient(self.loss, self.net, obs, action, target)\n"
    "d = dict(zip(('a', 'b'), m))\ntarget = reward * d['b']",
}


HELPER = (
    "    def learn(self, msrl, batch):",
    "    def scaled(self, pair):\n        first, _ = pair\n        return first * pair.b\n\n"
    "    def learn(self, msrl, batch):",
)


@pytest.mark.parametrize("case", READ)
def test_read(case, tmp_path):
    program = build_with(tmp_path, [FROM, HELPER], learn=READ[case])
    assert not any(isinstance(item, Branch) for item, _ in paths(program.body))


def test_a_function_sees_its_variables_as_they_are_when_it_is_called(tmp_path):
    lines = """
        scale = 2.0 * reward
        weighted = lambda o, a, t: self.loss(o, a, t * scale)
        for i in range(3):
            _, means = msrl.gradient(weighted, self.net, obs, action, target)
            scale = scale + means[0]
        """
    program = build_with(tmp_path, learn=lines)
    op = next(op for op, _ in walk(program.body) if op.kind == "gradient")
    loop = next(item for item, _ in paths(program.body) if getattr(item, "kind", "") == "range")
    assert op.args[-1] in {target for o, _ in walk(loop.body) for target in o.targets}
    assert "'self': learner" in op.attr["objects"][0]


def test_a_name_of_a_parameter_sees_updates(tmp_path):
    end = '"loss": means[0]'
    program = build_with(
        tmp_path,
        [(end, f'{end}, "w": msrl.sum(w), "was": msrl.sum(was)')],
        learn="w = self.net.critic.layers[0].weight\nwas = w.copy()",
    )
    ops = [op for op, _ in walk(program.body)]
    kinds = [op.kind for op in ops]
    path = "learner.net.critic.layers[0].weight"
    reads = {op.args[0]: place for place, op in enumerate(ops) if op.kind == "glue"}
    assert reads[f"{path}.copy()"] < kinds.index("update") < reads[path]
    assert "$parameters" in ops[reads[path]].reads


def test_a_loop_over_range_that_changes_an_array_is_not_unrolled(tmp_path):
    lines = "b = reward > 1.0\nfor i in range(3):\n    b |= reward > 0.0\ntarget = reward * b"
    program = build_with(tmp_path, learn=lines)
    assert "range" in [getattr(item, "kind", "") for item, _ in paths(program.body)]


REFUSED = {
    "a parameter that becomes a value": (
        "w = self.net.critic.layers[0].weight\nfor i in msrl.epochs(2):\n"
        "    msrl.update(self.apply, w)\n    w = w * 0.5",
        "for i in",
        "`w`, a Parameter here and another value later",
    ),
    "one value for several": (
        "pair = (reward, target)\nfor i in msrl.epochs(2):\n"
        "    pair = self.loss(obs, action, pair[0])",
        "for i in",
        "`pair`, 2 parts before the loop and one value at its end",
    ),
    "alias": ("a = []\nb = a\na.append(reward)", "a.append", "which `b` is too"),
    "in a tuple": ("a = []\nb = (a, 1)\na.append(reward)", "a.append", "which `b` holds too"),
    "in a function": (
        "a = []\ndef f(x):\n    x.append(reward)\n    return x[0]\ntarget = f(a)",
        "x.append",
        "in place of `x`, which",
    ),
    "perhaps another": (
        "a, b = [0.0], [1.0]\nif msrl.mean(reward) > 0:\n    a = b\na[0] = reward",
        "a[0] = reward",
        "which a condition or a loop may make another one",
    ),
    "another in each turn": (
        "a, b = [0.0], [1.0]\nfor i in msrl.epochs(2):\n    a[0] = a[0] * 2.0\n    a = b",
        "a[0] = ",
        "which a condition or a loop may make another one",
    ),
    "a loop over it": (
        "a = [reward]\nfor x in a:\n    a.append(x)",
        "a.append",
        "a change of `a` in a loop over it",
    ),
    "parts of another form": (
        "a = []\nfor (o,) in msrl.minibatches(2, (obs,)):\n    a.append(o[0])\n"
        "    a.append((1, 2))",
        "a.append((1",
        "a part of `a` of another form than the first",
    ),
    "parts of an unknown number": (
        "a = []\nfor (o,) in msrl.minibatches(2, (obs,)):\n    a.append(msrl.mean(o))\n"
        "    if a[-1] > 0:\n        break\ntarget = [2.0 * x for x in a][0]",
        "a][0]",
        "`a`, a list whose length is known only at run time",
    ),
    "a list of later keys": (
        "d = {'a': 1.0}\nfor k, v in d.items():\n    d[v] = v",
        "d[v] = v",
        "a change of `d` in a loop over it",
    ),
    "results of other keys": (
        "r = {'a': 1.0}\nif msrl.mean(reward) > 0:\n    return r\nreturn {**r, 'b': 2.0}",
        "if msrl",
        "the result, which is something else in each branch",
    ),
    "keys of a branch": (
        "d = {}\nif msrl.mean(reward) > 0:\n    d['a'] = reward\ntarget = len(d) * reward",
        "if msrl",
        "something else in each branch",
    ),
    "walrus behind": ("target = reward * (x := msrl.mean(reward))", "x := ", "`:=`"),
    "late lambda": (
        "f = [lambda x: k * x for k in (1, 2)]\ntarget = f[0](reward)",
        "lambda x",
        "a lambda that uses `k` of a comprehension",
    ),
    "nonlocal": (
        "n = 0\ndef f(x):\n    nonlocal n\n    n += 1\n    return n * x\ntarget = f(reward)",
        "nonlocal n",
        "`nonlocal` or `global`",
    ),
    "recursion": (
        "def f(x):\n    return f(x)\ntarget = f(reward)",
        "f(x)",
        "a function that calls itself",
    ),
    "function of a function": (
        "def make(k):\n    return lambda x: k * x\ntarget = make(2)(reward)",
        "def make",
        "a function that returns a function",
    ),
    "loss with msrl": (
        "grads, m = msrl.gradient(lambda o: msrl.mean(o), self.net, obs)",
        "lambda o",
        "a loss that calls msrl",
    ),
    "unknown in a loss": (
        "grads, m = msrl.gradient(lambda o: o * rest, self.net, obs)",
        "lambda o",
        "the unknown name 'rest'",
    ),
    "a dictionary that a loop grows and reads": (
        "d = {'a': 1.0}\nfor i in msrl.epochs(2):\n    d['b'] = d['a'] + i",
        "for i in",
        "`d`, a dictionary that grows in a loop that reads it",
    ),
    "pop": ("xs = [reward]\ntarget = xs.pop()", "xs.pop", "`pop` of a list"),
    "a key by the index of a loop that draws": (
        "d = {}\nfor k in range(2):\n    for (o,) in msrl.minibatches(2, (obs,)):\n"
        "        d[f'o{k}'] = msrl.mean(o)",
        "f'o{k}'",
        "a value that is only known at run time",
    ),
    "None in a branch": (
        "x = None\nif msrl.mean(reward) > 0:\n    x = reward\ntarget = x",
        "if msrl",
        "`x`, which is something else in each branch",
    ),
    "gradient by a number": (
        "grads, m = msrl.gradient(self.loss, 1.0, obs, action, target)",
        "1.0",
        "msrl.gradient by `1.0`",
    ),
    "no loss": (
        "grads, m = msrl.gradient(reward, self.net, obs)",
        "reward",
        "`reward` as a function",
    ),
    "a network as an argument": (
        "msrl.update(self.apply, self.net)",
        "msrl.update",
        "a Net in a variable as an operand",
    ),
    "gradients in a loop inside": (
        "for k in (1, 2):\n    for i in msrl.epochs(2):\n"
        "        g, m = msrl.gradient(self.loss, self.net, obs, action, target)",
        "msrl.gradient",
        "in an unrolled loop",
    ),
    "gradients under a condition inside": (
        "for k in (1, 2):\n    if msrl.mean(reward) > k:\n"
        "        g, m = msrl.gradient(self.loss, self.net, obs, action, target)",
        "msrl.gradient",
        "in an unrolled loop",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path):
    code, under, construct = REFUSED[case]
    with pytest.raises(ProgramError) as caught:
        build_with(tmp_path, learn=code)
    place, line, caret = str(caught.value).split("\n")[:3]
    assert construct in place
    assert line[len(caret) - 1 :].startswith(under), str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        "for k in range(3):\n    if k > 0:\n        {}",
        "for k in range(3):\n    if msrl.mean(reward) > k:\n        break\n    {}",
        "far = 0.0\nfor _ in range(3):\n    if far > 1.0:\n        {}\n    far = far + 1.0",
        "for k in range(3):\n    if k == 1:\n        continue\n    {}",
    ],
)
def test_numbers_that_some_turns_leave_out_are_refused(code, tmp_path):
    """The plain loop counts its draws, and a compiled one takes the turn's."""
    with pytest.raises(ProgramError, match=r"(?s)msrl.uniform\(8, 1\).*in every turn"):
        build_with(tmp_path, learn=code.format("target = target + msrl.uniform(8, 1).sum()"))


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(3):\n    if msrl.env_steps() > 100:\n        {}",
        "much = msrl.mean(reward) > 1.0\nfor _ in range(3):\n    if much:\n        {}",
        "if msrl.mean(reward) > 1.0:\n    {}",
        "for k in range(3):\n    noise = msrl.uniform(8, 1).sum()\n    if k > 0:\n"
        "        target = target + noise",
    ],
)
def test_numbers_of_all_turns_or_none_are_read(code, tmp_path):
    build_with(tmp_path, learn=code.format("target = target + msrl.uniform(8, 1).sum()"))


def test_all_problems_of_a_file_are_told_at_once(tmp_path):
    lines = """
        ratio = rewards / 2.0
        with reward:
            pass
        target = ratio + reward
        for x in reward:
            target = x
        xs = []
        for o in msrl.minibatches(2, (obs,)):
            xs.append(missing * o[0])
        target = sum(xs)
        """
    with pytest.raises(ProgramError) as caught:
        build_with(tmp_path, learn=lines)
    told = re.findall(r"\.py:\d+: (.*) is not supported here", str(caught.value))
    unknown = ["the unknown name 'rewards'", "the unknown name 'missing'"]
    assert told == [unknown[0], "`with`", "a loop over this", unknown[1]]


def test_problems_of_learn_are_told_with_those_of_train(tmp_path):
    lines = """
        with reward:
            pass
        for o, r in msrl.minibatches(2, (obs, reward)):
            if msrl.mean(r) > 0.5:
                self.kept = r
            target = missing * o
        ratio = nothing / obs
        """
    sample = 'batch = msrl.boundary("batch", msrl.replay_sample())'
    with pytest.raises(ProgramError) as caught:
        build_with(tmp_path, learn=lines, remove=[(sample, "batch = unknown")])
    told = re.findall(r"\.py:\d+: (.*) is not supported here", str(caught.value))
    assert told == [
        "the unknown name 'unknown'",
        "`with`",
        "an assignment to an attribute",
        "the unknown name 'missing'",
        "the unknown name 'nothing'",
    ]
