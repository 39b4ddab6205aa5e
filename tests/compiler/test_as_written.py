"""The loop as people write it: losses inside `learn`, networks in lists, lists that grow."""

import dataclasses
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
    "from collections import defaultdict\nfrom functools import partial\n"
    "from typing import Any, NamedTuple\nimport numpy as np\n"
    "from mindspore import nn, ops\nclass Pair(NamedTuple):\n    a: Any\n    b: Any\n"
    "    @property\n    def both(self):\n        return self.a + 0.5 * self.b\n"
    "    def times(self, by):\n        return by * self.a\n"
    "    def twice(self):\n        return self._replace(b=2.0 * self.b)\n"
    "def shrink(parameters, by):\n    for p in parameters:\n        ops.assign(p, by * p)\n",
)


LOSSES = """
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
MADE_ANEW = """
found, much = {"a": 0.0}, msrl.mean(reward) > 0.0
for k in range(3):
    found["a"] = found["a"] + msrl.mean(reward)
    if much:
        found = {"a": msrl.mean(target) * k}
found["b"] = msrl.mean(reward)
seen = {}
if not msrl.mean(reward) > 1e6:
    seen["a"] = 0.5
both = msrl.mean(ops.stack((reward, target), -1), keep=1)
(a, b), (c, *_), (e, _) = both, self.three(reward), ops.relu(both)
*_, d = self.three(target)
sizes = {"r": reward, "t": (target, obs)}
drawn = msrl.uniform(len(sizes["r"]), 1), msrl.uniform(self.rounds(8) - 2, 1)
numbers = msrl.mean(drawn[0]) + msrl.mean(drawn[1])
target = target + found["a"] + found["b"] + seen.get("a", 0.0) + a - b + c + d * e + numbers
target = target + 0.1 * self.mean_square(msrl, obs, target)
"""
HELPERS = """
    def squares(self, obs, target):
        return squares(self.net.value(obs) - target)

    def mean_square(self, msrl, obs, target):
        for _ in range(2):
            grads, loss = msrl.gradient(self.squares, self.net, obs, target)
        return loss

    def three(self, x):
        return x, 2.0 * x, 3.0 * x

    def rounds(self, n):
        if n > 6:
            return max(n - 2, 1)
        return n // 2 + 1

    def learn"""
STEPS_LINE = "            for step in msrl.steps():"
NESTS = """
total, history = 0.0, []
for _ in msrl.epochs(2):
    for by, net in ((1.0, self.net), (0.5, self.net)):
        total = total + sum(msrl.mean(msrl.uniform(8, k)) for k in (1, 2, 1))
        for _ in msrl.epochs(3):
            (kept,) = msrl.replay_sample(16)
            kept = msrl.boundary("advantage", kept)
            some = msrl.mean(kept) + msrl.mean(msrl.uniform(8, 1))
            for o, a, t in msrl.minibatches(2, (obs, action, target)):
                g, means = msrl.gradient(self.loss, net, o, a, t * by + some)
                msrl.update(self.apply, g)
                history.append((*means, by))
                total = total + by * msrl.mean(t) + msrl.sum(msrl.uniform(8, 1))
    total = total + sum(sum(column) / len(column) for column in zip(*history))
    if total > 0.0:
        for (x,) in msrl.minibatches(1, (reward,)):
            total = total + 0.01 * msrl.mean(x * x)
    first, *others = self.pieces(self.norms(lambda x: x + some, (0.5, by, 1.0)), (1, 2))
    total = total + first.sum() + 0.1 * others[0].sum()
    for (x,), (y,) in zip(msrl.minibatches(2, (reward,)), msrl.minibatches(2, (target,))):
        total = total + msrl.mean(x * y)
target = target + total
"""
PIECES = """
    def norms(self, norm, scales):
        return ops.stack([norm(scale) for scale in scales])

    def pieces(self, vector, sizes):
        parts, start = [], 0
        for size in sizes:
            parts.append(vector[start : start + size])
            start += size
        return parts

    def learn"""
OF_FILE = (
    "\nclass Learn(",
    "\ndef squares(x):\n    squared = ops.square(x)\n    return squared\n\n\nclass Learn(",
)
LEFT_OUT = """
far = 0.0
for k in range(3):
    if k > 0:
        target = target + msrl.mean(msrl.uniform(8, 1))
    target = target + 0.1 * msrl.mean(msrl.uniform(8, 1))
    if k == 2:
        rate = msrl.mean(target)
        half = 0.5 * rate
if msrl.env_steps() >= 0:
    late = msrl.mean(reward)
target = target + rate * half + late
for k in range(3):
    if msrl.mean(reward) < k:
        break
    target = target + msrl.mean(msrl.uniform(8, 1))
for _ in range(3):
    if far > 1.0:
        target = target + msrl.mean(msrl.uniform(8, 1))
    far = far + 0.8
for k in range(3):
    if k == 1:
        continue
    target = target + msrl.mean(msrl.uniform(8, 1))
"""
OF_STEPS = """
            metrics = msrl.agent_learn(batch)
            by = 0.9 + 0.01 * msrl.mean(income)
            msrl.update(shrink, self.learner.net.trainable_params(), by)
            msrl.report(metrics)"""
SOME_TURNS = """
for by in (1.0, 0.5):
    if msrl.mean(target) > by:
        for (o,) in msrl.minibatches(2, (obs,)):
            target = target + by * msrl.mean(o)
        for _ in msrl.epochs(2):
            for (o, r) in msrl.minibatches(2, (obs, reward)):
                target = target - by * msrl.mean(o * r[..., None])
for i in range(3):
    for by in (1.0, 0.5):
        for (o,) in msrl.minibatches(2, (obs,)):
            target = 0.9 * target + by * msrl.mean(o)
    if msrl.mean(target) < 0.5 * i:
        break
"""
EXTREMES = """
rate = 1.0
for k in range(3):
    rate = max(0.9 * rate, min(msrl.mean(reward), 0.95))
target = target * rate + max(msrl.env_steps() - 20, 0.5)
low = max(0.25, msrl.mean(reward) - 10.0)
for (o,) in msrl.minibatches(2, (obs,)):
    low = low * msrl.mean(o)
target = target + low
"""
FILLED = """
    adv, last, out = ops.zeros_like(reward), 0.0, [None] * reward.shape[0]
    returns, wide = ops.zeros_like(reward), ops.ones(obs.shape)
    T = reward.shape[0]
    for t in range(T - 1, -1, -1):
        if t == T - 1:
            following = 0.5 * target[t]
        else:
            following = 0.1 * returns[t + 1] + target[t + 1]
        returns[t] = last = reward[t] + 0.9 * following + 0.5 * last
    for t in reversed(range(self.config.num_steps)):
        out[t] = last if t == self.config.num_steps - 1 else last * reward[t + 1]
    for i in range(2):
        noise = msrl.uniform(len(reward) * reward.shape[1], 1)
        wide[:, :, i - 1] = 2.0 * i + reward
        wide[i] = msrl.mean(noise) + obs[i]
    for o, mb in msrl.minibatches(2, (obs, target)):
        mb = (mb - msrl.mean(mb)) / ops.sqrt(1.0 + msrl.mean(mb * mb))
        chance = msrl.mean(msrl.uniform(len(mb), 3)[:, 0] * mb)
    target = returns + wide.sum(-1) + ops.stack(out) * chance
"""
DRAWN = """
def some():
    if msrl.env_steps() < 6:
        return {}
    metrics = {"a": 1.0}
    metrics["b"] = msrl.mean(reward)
    return metrics
metrics = some()
metrics["c"] = 2.0 * msrl.mean(reward)
a, b = (msrl.uniform(8, 2) for _ in range(2))
noise = [
    0.1 * k * msrl.mean(msrl.uniform(8, 1)) + other
    for k in range(3)
    for other in (1.0, msrl.mean(msrl.uniform(8, 2)))
]
one, two = map(lambda k: k * msrl.mean(msrl.uniform(8, 1)), (1.0, 2.0))
shift = ops.stack([k * x for k, x in enumerate(noise)]).sum() + msrl.mean(a) - 2.0 * msrl.mean(b)
target = target * metrics["c"] + shift + 3.0 * one + two
for turn in msrl.epochs(2):
    for k, w in enumerate((1.0, 2.0)):
        if msrl.mean(reward) * (k + turn) < 1.5:
            g, _ = msrl.gradient(self.loss, self.net, obs, action, w * target)
            msrl.update(self.apply, g)
for k in (1.0, 2.0, 3.0):
    g, (loss, _) = msrl.gradient(self.loss, self.net, obs, action, k * target)
    if loss * k > 2.0:
        break
    msrl.update(self.apply, g)
scales = (0.1, 0.2)
parts = [msrl.gradient(self.loss, self.net, obs, action, k * target)[1][0] for k in scales]
target = target + sum(parts)
"""
ASKED = """
m, n = {"a": msrl.mean(reward)}, {}
if msrl.env_steps() > 10:
    m["loss"] = 2.0 * msrl.mean(reward)
if "loss" in m:
    target = m["loss"] * target
if "loss" not in m:
    m["loss"] = 0.5
x = m["loss"] + m.get("b", 3.0) + m.get("a")
for k in range(3):
    if "t" not in n:
        n["t"] = 1.0 * k
    n["t"] += msrl.mean(reward)
for _ in msrl.epochs(3):
    if "e" not in n:
        n["e"] = 0.0
    n["e"] = 2.0 * n["e"] + msrl.mean(reward)
    n["f"] = n.get("f", 1.5) * 2.0 + msrl.mean(reward)
if msrl.env_steps() < 10:
    n.setdefault("g", 0.25)
    n.setdefault("e", 0.25)
target = target * (x + n["t"]) + n["e"] + n["f"] + n.get("g", 7.0) + ("g" in n) * 2.0
"""
BY_NAME = """
g, m = msrl.gradient(self.loss, self.net, obs, target=0.5 * target, action=action)
msrl.update(self.apply, grads=g)
def error(o, goal, by):
    return by * self.net.value(o) - goal
g, m, rows = msrl.gradient(error, self.net, by=0.5, o=obs, goal=target, rows=True)
msrl.update(self.apply, g)
"""
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
def parted(o, a, t):
    parts = [by * self.loss(o, a, t)[0] for by in (0.5, 0.25)]
    return sum(parts), *parts
history = []
for _ in msrl.epochs(2):
    grads, means = msrl.gradient(parted, self.net, obs, action, target)
    msrl.update(self.apply, grads)
    history.append(means)
found = {name: sum(xs) / len(xs) for name, xs in zip(("sum", "a", "b"), zip(*history))}
target = target + found["sum"] - 0.5 * found["b"]
"""
NUMBER = """
losses, metrics, value = [], {"one": 0.0}, 0.0
for scale in (1.0, 2.0):
    def loss(obs, action, goal):
        return self.loss(obs, action, scale * goal)[0]
    grads, one = msrl.gradient(loss, self.net, obs, action, target)
    msrl.update(self.apply, grads)
    losses.append(one)
if msrl.env_steps() >= 0:
    grads, value = msrl.gradient(loss, self.net, obs, action, target)
    metrics = {"one": value}
    metrics.update(one=0.5 * value)
(_, (pair,)), target = msrl.gradient(loss, self.net, obs, action, target), 2.0 * target
target = target + sum(losses) / len(losses) + metrics["one"] * value + pair
"""
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
        msrl.update(self.moved, self.net, 0.1, msrl.mean(reward))
        losses.append(np.mean([loss, k * 1.0]))
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
    pair = Pair(reward, target)._replace(a=2.0 * reward).twice().twice()
    target = pair.both + Pair(reward, b=target).twice().times(0.5) + self.ends(msrl, obs)["low"]
    found = self.ends(msrl, reward) | self.ends(msrl, pair.b, low=0.5)
    target = target + found["low"] * found["high"]
    """
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
SIZES = """
    T, B = reward.shape
    half, n, by = 0.5 * reward, T * B, 2.0
    shape = obs.shape[:2]
    target = target - half * by
    for scale in (1.0, 2.0):
        target = target.reshape(-1)
        (rows,) = target.shape
        target = target.reshape((rows // B, B)) * scale
    flat = obs.reshape(n, -1)
    target = target + self.net.value(flat).reshape(shape) / T
    """
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
ROWS_OF_NUMBERS = """
    place = ops.arange(self.config.num_envs)
    last = ops.zeros(self.config.num_envs)
    for t in range(4):
        last = reward[t] + 0.9 * last
    target = target + last + place
    """
EARLY = """
total, k = 0.0, 0
for i in range(4):
    for j in range(3):
        if msrl.mean(reward) * j > 1.5:
            break
        else:
            if i > 1:
                total += 1.0
                break
            total += 0.5
        total += 0.25
    if total > 3.0:
        break
    k += 1
n = 0
while 7 > n and total < 9.0:
    n += 2
    if k + n > 7:
        break
    total += n
target = reward * (total + k)
"""
NUMBERS = """
coef, parts = (0.5, 2.0, 1.0), {0: reward, 1: 0.5 * obs[:, :, 0]}
noise = msrl.uniform(self.config.num_envs * self.config.num_steps, 3)
wide = ops.stack((reward.reshape(-1), noise[:, 0]), 1).swapaxes(0, 1).reshape((-1, 1))
for i in range(3):
    for _ in range(self.config.update_epochs - 2):
        later = reward
    target = parts[0] + coef[2 - i] * parts[1] * target
    later = target
target = target + later + wide[:, 0].reshape((2, *reward.shape)).sum(0)
"""
SEQUENCES = """
parts, weights = {"a": reward, "b": 0.5 * obs[:, :, 0]}, (0.5, 2.0)
for name, weight in zip(("b", "a"), weights, strict=True):
    target = target + weight * parts[name]
for place, (name, part) in enumerate(parts.items(), start=2):
    target = target * 0.5 + place * part
    if msrl.mean(target) > 1.0:
        break
    target = target + 0.25
scaled = {name: part * k for k, (name, part) in enumerate(parts.items()) if k != 0}
for i in range(2):
    for part in reversed([target, reward, *scaled.values()]):
        last = part * 0.5
        for power in (1, 2):
            last = last - part * 0.1 * power
    target = target + last * i
target = sum(k * part for part in (target, reward) for k in range(1, 3))
low, high = msrl.min(reward), msrl.max(reward)
made = [low, high]
for _ in msrl.epochs(2):
    for one, other in zip((low, {"h": high}["h"], high), [high, low, low]):
        low, high = low + 0.5 * one, high - 0.25 * other
    for part in made:
        made = [high, part]
target = target * low + made[0] + made[1]
"""
BY_TURNS = """
a, b, c = msrl.mean(reward), msrl.max(reward), msrl.min(reward)
def shifted(value):
    return value + 0.1 * a
for x in (v * a for k, v in enumerate((b, c, b, 2 * c)) if k != 1 and v > a):
    a = a + 0.3 * x
    if a > 100.0:
        break
for x in filter(lambda v: v > a, (b, c, 2 * b, a)):
    a = a + 0.2 * x
halves = (0.5 * v for v in (b, a))
low, high = msrl.min(reward), max(*halves)
thirds = (v / 3.0 for v in (b, c))
for x in thirds:
    a = 0.5 * a + x + low + high
for t in range(2):
    for pair in zip((b, c), (v * a for v in (b, c)), map(lambda v, w: v * a + w, (b, c), (c, a))):
        a = a + 0.3 * pair[0] + 0.1 * pair[1] - pair[2]
    for k, x in enumerate(map(shifted, (b, c))):
        a = 0.5 * a + k * x
for x in map(lambda seen: msrl.mean(self.net.value(seen)), (obs, 0.5 * obs)):
    g, _ = msrl.gradient(self.loss, self.net, obs, action, target * x)
    msrl.update(self.apply, g)
    a = a + x
target = target * a
"""
TURNS = """
total = 0.0
for k in range(5, 0, -2):
    if msrl.mean(target) > 1.0 * k:
        continue
    for j in range(2, 5):
        if j == 3 or not self.config.extra:
            continue
        if msrl.mean(reward) > 2.0:
            break
        total += k * j
    target = target + 0.5 * k
    if msrl.env_steps() < 0:
        continue
    if total > 30.0:
        break
    total += 0.5
for k in range(4, 4):
    total = nothing
for part in (1.0, 2.0):
    if msrl.mean(target) > part:
        continue
    target = target * part
target = target + total
"""
RETURNS = """
if self.config.extra and msrl.env_steps() < 0:
    print("never")
    return {"loss": 0.0}
assert float(target.max()) < 100.0, f"{target} is large"
target = target + self.shifted(msrl, target, obs)
if msrl.env_steps() > 0:
    return {"loss": msrl.mean(target)}
"""
SHIFTED = """
    def shifted(self, msrl, value, obs):
        m = msrl.mean(value)
        if m > 2.0:
            if not self.config.extra:
                return 0.0 * value
            return 0.5 * value + m
        elif m < -2.0:
            return 0.5 * value - m
        value = 0.25 * value
        if m > 0.5:
            return value
        else:
            return -value + msrl.mean(obs)

    def learn(self, msrl, batch):"""
MEANS = """
a, b = msrl.mean(reward, obs, keep=1)
target = target - a + msrl.mean(b)
"""
MADE = "self.actor, self.learner = Act(net), Learn(net, config)"
INSERT = 'msrl.replay_insert(*msrl.boundary("transition", (obs, action, reward)))'
ITERATIONS = "        for _ in msrl.iterations"
SCALED = """
    def scaled(self, grads, factor):
        self.optimizer(tuple([g + factor for g in grads]))

    def learn"""
MOVED = """
    def moved(self, net, by, mean):
        for p in net.trainable_params():
            ops.assign(p, p + by * mean)

    def ends(self, msrl, x, **more):
        return {"low": msrl.min(x), "high": msrl.max(x), **more}

    def learn"""
ONE_VALUE = '(ops.cat((obs, ops.stack((action.astype("float32"), reward), 1)), 1),)))'
PARTS = 'rows[..., :4], rows[..., 4].astype("int32"), rows[..., 5]'
MEMORY = "memory = ops.zeros((self.config.num_envs, obs.shape[-1] // 2))\n"
MEMORY += "        kept = {'sum': ops.zeros((self.config.num_envs,))}\n"
STEPS_BY_NUMBER = "for step in msrl.steps()", "for step in range(self.config.num_steps)"
DROPPED = """
top, low = msrl.max(reward), msrl.min(reward)
for k in range(1, 3):
    if top > -9.0:
        if k == 1 or top < -5.0:
            half = 0.5 * low
        else:
            top, low = low, 0.9 * top
        low = msrl.max(reward)
    reward = reward + 0.1 * low
target = reward"""
LEFT_OUT_METRICS = """
metrics, kept, last = {}, {"a": 1.0}, {}
for k in msrl.epochs(4):
    for (o,) in msrl.minibatches(2, (obs,)):
        metrics["mean"] = msrl.mean(o) * k
        if k % 2 == 1:
            metrics["odd"] = msrl.mean(o) * k
        if msrl.env_steps() > 20:
            more = {"late": msrl.mean(o)}
            if k == 2:
                more["k"] = k
            metrics.update(more)
    kept["b"] = kept["a"] + k
    if k == 1:
        last = {"last": msrl.mean(reward)}
if msrl.env_steps() < 20:
    last = {**last, "early": 2.0}
    target = 0.5 * target
else:
    last = last | {"other": 3.0}
more = {"late": 3.0, "early": 0.25, "z": 1.0, **metrics, **last}
target = target * more["late"] * more["early"]
"""
LONGER = """
xs, both, lists = [1.0], [], {"all": [], "some": []}
if msrl.env_steps() > 20:
    xs.append(msrl.mean(reward))
    both.append(reward)
    for k in range(2):
        lists["all"].append(msrl.mean(reward) * k)
    for scale in (1.0, 2.0):
        if msrl.mean(reward) > 0.5 * scale:
            xs.append(scale)
elif msrl.mean(reward) > 0.9:
    xs.append(3.0)
    both.append(2 * reward)
else:
    both.append(3 * reward)
for k in msrl.epochs(2):
    if k == 1:
        for j in range(3):
            xs.append(1.0 * j)
for part in (1.0, 2.0):
    if msrl.mean(reward) > 0.8 * part:
        break
    lists["some"].append(part)
mean = sum(lists["some"]) / max(len(lists["some"]), 1)
target = target * sum(xs) / len(xs) + both[0] + len(lists["all"]) + xs[-1] + mean
"""
OF_A_CONDITION = """
            if msrl.env_steps() > 20:
                metrics = msrl.agent_learn(batch)
            msrl.report(metrics)"""
ENTRIES = """
    def doubled(data):
        return data["reward"] * 2.0
    def loss(data, by):
        same = data
        return self.loss(same["obs"], data["action"], by * data["target"])
    data = {**batch, "target": doubled(batch)}
    for part in msrl.minibatches(2, data):
        g, _ = msrl.gradient(loss, self.net, part, 0.5)
        msrl.update(self.apply, g)
    obs, action, target = batch["obs"], batch["action"], data["target"]
    """
STEPS = """
    last, out = 0.0 * reward[0], []
    high, wide = ops.logical_or(reward > 0.5, reward < 0.1).astype("float32"), obs[..., 0]
    for r, h, w in zip(reversed(reward), reversed(high), reversed(wide)):
        last = r + 0.5 * last * h + 0.1 * w
        out.append(last)
    acc, sums = 0.0, []
    for t in range(len(reward) - 1, -1, -1):
        acc = reward[t] + 0.9 * acc
        sums.append(acc)
    sums.reverse()
    target, stats = ops.stack(out[::-1]) + ops.stack(sums), []
    for k in range(4):
        g, means = msrl.gradient(self.loss, self.net, obs, action, target)
        msrl.update(self.apply, g)
        stats.append(means)
        if means[0] > 1e6:
            break
    firsts, pairs, sums = [stat[0] for stat in stats], [], []
    for k in range(2):
        g, means = msrl.gradient(self.loss, self.net, obs, action, target)
        msrl.update(self.apply, g)
        pairs.append((k * 1.0, means))
    for k, (_, more) in zip((1.0, 2.0), pairs):
        sums = [k * more[0]] + sums
    target = target + sum(firsts) / len(firsts) + stats[-1][1] + sums[0]
    """
PYTHONS = """
    def keyed(x, *more, **extra):
        return dict(a=x, n=len(more), **extra)
    def one(o, a, t):
        return ((self.net.value(o) - t) ** 2.0).reshape(-1)
    d, by = keyed(reward, 1.0, b=target, c=2.0), {"maximum": 0.9}
    added = functools.reduce(lambda p, q: {k: p.get(k, 0.0) + v for k, v in q.items()}, [d, d, d])
    target = functools.reduce(operator.add, [added["a"], added["b"] * added["c"], d["n"]], 0.5)
    for k, v in sorted(added.items(), key=lambda pair: pair[0], reverse=True):
        target = 0.5 * target + v
    for a, b in itertools.combinations((target, 2.0 * reward, obs[..., 0]), 2):
        target = target + a * b
    for k, b in itertools.product(filter(lambda n: n > 1, (1, 2, 3)), (2.0 * target, reward)):
        target = 0.1 * target + b * k
    for k, v in itertools.chain({"p": reward}.items(), zip("q", itertools.repeat(target, 2))):
        target = 0.5 * target + v * ("pq".index(k) + 1.0)
    target = target * len(max(by, key=len)) + shrunk(reward, **by)
    match len(by):
        case 0 | 2:
            target = 3.0 * target
        case _ if "maximum" in by:
            target = target + 1.0
    target, losses, all_losses = target / (1.0 + ops.abs(target)), [], {}
    pair = Pair(target, reward)
    target = pair.both + pair.times(0.5)
    def of_pair(pair, o, a):
        return self.loss(o, a, pair.both)
    g, _ = msrl.gradient(of_pair, self.net, pair, obs, action)
    msrl.update(self.apply, g)
    for loss in (self.loss, one):
        acted = action if loss == self.loss else target
        g, told = msrl.gradient(loss, self.net, obs, acted, target)
        first, *rest = told if isinstance(told, tuple) else (told,)
        size = functools.reduce(operator.add, [(x * x).sum() for x in g])
        target = target * first + len(rest) + size
        target = target / (1.0 + ops.abs(target))
    if msrl.env_steps() > 8:
        for _ in range(2):
            g, (loss, *_) = msrl.gradient(self.loss, self.net, obs, action, target)
            msrl.update(self.apply, g)
            losses.append(loss)
    if losses:
        all_losses["mean"] = sum(losses) / len(losses)
    msrl.report({k: v for k, v in all_losses.items() if k != "none"})
    """
BOOKKEEPING = """
def total(*xs, **more):
    return sum(xs) + more["last"]
groups, counts = defaultdict(list), defaultdict(float)
names = sorted({name for name in ("bb", "a", "ccc")} - {"a"}, key=lambda name: -len(name))
for k, (name, other) in enumerate(itertools.product(names, (1.0, 2.0))):
    groups[name].append(k * reward + other)
    groups[f"{name}/{k}"].append(reward)
    counts["all"] += msrl.mean(reward) * k
popped = groups.pop("bb/2")
kept = popped[0] - counts["all"]
spread = {f"spread/{k}": v for k, v in spreads(msrl.mean(reward)).items()}
target = functools.reduce(lambda a, b: a - 0.5 * b, groups["ccc"]) + groups["bb"][1] * kept
for (_, low), (_, high) in itertools.pairwise(sorted(spread.items(), key=lambda pair: pair[0])):
    target = target + low - 2.0 * high
for a, b in zip(*[(target, reward), (0.5, 2.0)]):
    target = target + 0.1 * a * b
xs = [reward, target, 2.0 * reward]
last = xs.pop()
del spread["spread/low"], a
b = spread.copy()
target = total(sum(map(lambda x: 0.5 * x, xs)), last, last=len(b) * len(groups))
first = xs.pop(0)
target = target - first + len(xs)
match self.config.env:
    case "Pendulum-v1":
        target = nothing
    case "CartPole-v1" | "probe:constant" if len(names) == 2:
        target = RATES["half"](target) + len(names)
    case _:
        target = 0.1 * target
squash = (ops.tanh, ops.sin)[len(names) - 2]
target = squash(target) + self.centred(msrl, **{"value": reward, "by": 0.5})
by_name = {"action": action, "target": target}
g, m = msrl.gradient(self.loss, self.net, obs, **by_name)
msrl.update(self.apply, g)
"""
HEAD = """import functools, itertools
from collections import defaultdict
RATES = {"all": lambda x: 1.0 * x, "half": lambda x: 0.5 * x, "less": lambda x: x - 0.5}
def spreads(x):
    found = {}
    for name in ("low", "high"):
        found[name] = 0.5 * x if name == "low" else 2.0 * x
    return found
from mindspore import nn, ops"""
CENTRED = """
    def centred(self, msrl, **given):
        return given["value"] - given["by"] * msrl.mean(given["value"])

    def learn"""
EQUAL = {
    "bookkeeping in Python": (
        {
            "learn": BOOKKEEPING,
            "remove": [("from mindspore import nn, ops", HEAD), ("\n    def learn", CENTRED)],
        },
    ),
    "functions and iterators of Python": (
        {
            "learn": PYTHONS,
            "remove": [
                (
                    "from mindspore import nn, ops",
                    f"{FROM[1]}import functools, itertools, operator\n",
                ),
                (
                    "class Learn",
                    "def shrunk(x, maximum):\n    return ops.clamp(x, max=maximum)\nclass Learn",
                ),
            ],
        },
    ),
    "steps and minibatches are dictionaries": (
        {
            "learn": ENTRIES,
            "remove": [
                ("obs, action, reward = batch\n        target = reward\n", ""),
                (
                    '(*msrl.boundary("transition", (obs, action, reward)))',
                    '({"obs": obs, "action": action, "reward": reward})',
                ),
            ],
        },
    ),
    "loops over steps, and lists of what a loss returns": ({"learn": STEPS},),
    "metrics that conditions and turns of loops leave out": (
        {
            "learn": LEFT_OUT_METRICS,
            "remove": [('{"loss": means[0]}', '{**metrics, **last, "b": kept["a"]}')],
        },
    ),
    "lists that one branch of a condition makes longer": ({"learn": LONGER},),
    "metrics of a condition are those of the iteration before": (
        {
            "remove": [
                (ITERATIONS, f"        metrics = {{}}\n{ITERATIONS}"),
                ("msrl.report(msrl.agent_learn(batch))", OF_A_CONDITION),
            ]
        },
        "SingleLearnerCoarse",
    ),
    "a name that an inner condition sets, and the outer one sets again": ({"learn": DROPPED},),
    "losses see their names at the call, and means may be unread": ({"learn": LOSSES}, "Central"),
    "numbers that some turns of a loop leave out": ({"learn": LEFT_OUT},),
    "loops inside an unrolled loop draw; two loops over minibatches at once": (
        {
            "learn": NESTS,
            "loop": "msrl.replay_insert(reward, keep=64)\nsummed += 0.5 * reward",
            "remove": [
                ('"loss": means[0]', '"loss": means[0], "total": total'),
                ("\n    def learn", PIECES),
                (STEPS_LINE, f"            summed = 0.5\n{STEPS_LINE}"),
                ("msrl.agent_learn(batch)", "{**msrl.agent_learn(batch), 's': msrl.mean(summed)}"),
            ],
        },
    ),
    "a dictionary made anew in a loop is filled; rows of an array have names": (
        {"learn": MADE_ANEW, "remove": [("\n    def learn", HELPERS), OF_FILE]},
    ),
    "an update takes what the loop over steps has summed": (
        {
            "loop": "income = 0.5 * income + reward",
            "remove": [
                FROM,
                (ITERATIONS, f"        income = ops.zeros(self.config.num_envs)\n{ITERATIONS}"),
                ("msrl.report(msrl.agent_learn(batch))", OF_STEPS),
            ],
        },
        "SingleLearnerCoarse",
    ),
    "loops over minibatches in some turns of an unrolled loop": ({"learn": SOME_TURNS},),
    "the extreme of two numbers of the run": ({"learn": EXTREMES},),
    "arrays and lists of a known length are filled": ({"learn": FILLED},),
    "the other values of a loss are one tuple": ({"learn": REST},),
    "the only value of a loss is a number and a tuple": ({"learn": NUMBER},),
    "loops that return, lists that grow in them, enumerate, else": (
        {
            "learn": LOOPS,
            "loop": "reward = reward * turn + again",
            "remove": [
                FROM,
                ("\n    def learn", MOVED),
                (
                    "for _ in msrl.iterations()",
                    "for turn, again in enumerate(msrl.iterations(), 1)",
                ),
                ('"loss": means[0]', '"loss": means[0], "last": last, "count": count'),
            ],
        },
    ),
    "a list grows around a gradient; sizes with names are the replica's": (
        {"learn": FITS + SIZES},
    ),
    "each turn of an unrolled loop draws numbers of its own": (
        {"learn": DRAWS, "loop": "msrl.replay_insert(obs, action, reward, keep=64)"},
    ),
    "records of one value are unpacked": (
        {
            "learn": "(kept,) = msrl.replay_sample(8)\ntarget = target + msrl.mean(kept)",
            "loop": "msrl.replay_insert(reward, keep=32)",
            "remove": [
                ("(obs, action, reward)))", ONE_VALUE),
                ("obs, action, reward = batch", f"(rows,) = batch; obs, action, reward = {PARTS}"),
            ],
        },
    ),
    "a replica takes its rows of an array made of numbers": (
        {
            "learn": ROWS_OF_NUMBERS,
            "loop": "memory = 0.5 * memory + obs[:, :2]\nkept['sum'] = 0.5 * kept['sum'] + reward\n"
            "reward = kept['sum'] + memory.sum(-1)",
            "remove": [(ITERATIONS, f"        {MEMORY}{ITERATIONS}"), STEPS_BY_NUMBER],
        },
    ),
    "turns left out, and ranges with a start and a step": ({"learn": TURNS},),
    "generators and `map` compute a value at its turn": ({"learn": BY_TURNS},),
    "returns under conditions of the run": (
        {"learn": RETURNS, "remove": [("\n    def learn(self, msrl, batch):", SHIFTED)]},
    ),
    "loops and comprehensions over known lengths": ({"learn": SEQUENCES},),
    "draws and gradients in comprehensions, map and conditions; one of two dictionaries": (
        {"learn": DRAWN},
        "Central",
    ),
    "arguments by name": (
        {"learn": BY_NAME, "remove": [("agent_learn(batch)", "agent_learn(batch=batch)")]},
    ),
    "entries that are asked for": ({"learn": ASKED}, "Central"),
    "breaks in both branches, and in a while; means of each environment": (
        {"learn": EARLY + MEANS},
    ),
    "numbers as keys, as a table, and of no turns": ({"learn": NUMBERS}, "Central"),
    "a whole value beside shares of a sum": (
        {
            "remove": [
                ("\n    def learn", SCALED),
                ('"gradient", gradient)', '"gradient", (*gradient, msrl.mean(obs * obs)))'),
                ("grads, means =", "grads, means, m ="),
                ("self.apply, grads", "self.scaled, grads, m"),
                ('"loss": means[0]', '"loss": msrl.mean(reward)'),
            ]
        },
        "Central",
    ),
}
"""Changes of the template, and the policy if it is not MultipleLearners."""


WIDE = (
    "arrays and lists of a known length are filled",
    "loops that return, lists that grow in them, enumerate, else",
    "draws and gradients in comprehensions, map and conditions; one of two dictionaries",
    "entries that are asked for",
    "a whole value beside shares of a sum",
)
"""Cases that together have most forms. Without `--all` the others are only read."""


@pytest.mark.parametrize("case", [case for case in EQUAL if case not in WIDE])
def test_a_changed_program_is_read(case, tmp_path):
    parts, *_ = EQUAL[case]
    build_with(tmp_path, **parts)


@pytest.mark.parametrize("case", quick(EQUAL, *(i for i, case in enumerate(EQUAL) if case in WIDE)))
def test_a_changed_program_equals_the_reference(case, tmp_path):
    parts, *policy = EQUAL[case]
    file = program_with(tmp_path, **parts)
    job = inproc.request(file, *(policy or ["MultipleLearners"]), 3, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


AS_TRAINED = """
total = sum(msrl.mean(msrl.uniform(8, k)) for k in (1, 2))
for _ in msrl.epochs(3):
    for by in (1.0, 0.5):
        (kept,) = msrl.replay_sample(8)
        total = total + by * msrl.mean(kept)
target = target + total
"""


@pytest.mark.slow
def test_draws_of_unrolled_loops_as_trained(tmp_path):
    """Without recorded marks a loop is one cell, whose draws are made ahead."""
    loop = "msrl.replay_insert(reward + obs[:, 0], keep=64)"
    told = ('"loss": means[0]', '"loss": means[0], "total": total')
    file = program_with(tmp_path, [told], learn=AS_TRAINED, loop=loop)
    job = inproc.request(file, "MultipleLearners", 1, num_steps=4)
    job = dataclasses.replace(job, compiled=True, record=())
    assert inproc.differences(job, tmp_path) == []


def test_networks_in_containers_have_the_names_of_a_cell_list(tmp_path):
    lines = [
        "nets, self.learner.nets = [Net(config, spec) for _ in range(2)], []",
        "self.learner.nets.extend(nets)",  # after it became an attribute
        "self.actor.parts = {'a': (nn.Dense(2, 2),), 'scale': [Parameter(ops.ones(3))]}",
        "self.learner.optimizers = tuple(nn.Adam(n.trainable_params(), 0.1) for n in nets)",
        "self.learner.pairs = [nets[0].trainable_params()]",
    ]
    changed = [
        (MADE, "\n        ".join([MADE, *lines])),
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


@pytest.mark.slow
def test_dictionaries_filled_in_loops_reversed_loops_and_objects_with_parameters(tmp_path):
    changed = [
        ('{"loss": means[0]}', '{"loss": means[0], **metrics}'),
        ("from mindspore import nn", "from mindspore import Parameter, nn"),
        ("class Learn(BaseLearner):\n", COUNTS),
        (MADE, f"{MADE}\n        self.learner.counts = Counts()"),
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
    "a helper that makes a record": "pair = self.made(reward)\ntarget = pair.b",
    "entries beside names": "d = {}\n_, (d['a'], d['b']) = msrl.gradient(self.loss, self.net, obs, "
    "action, target)\ntarget = reward * d['b']",
    "update by an operator": "msrl.update(ops.assign, self.net.trainable_params()[0], 0.0)",
    "an argument of a loss is made anew": "def parted(o, a, parts):\n"
    "    parts = [2.0 * part for part in parts]\n    return sum(parts), *parts\n"
    "g, m = msrl.gradient(parted, self.net, obs, action, (target, reward))\n"
    "target = target * m[0]",
    "update by both": "d = {}\nd.update({'a': reward}, b=target)\ntarget = d['a'] + d['b']",
    "entries of the keys": "d = {'a': [], 'b': []}\nfor k, x in zip(d, (reward, target)):\n"
    "    d[k].append(x)\ntarget = d['b'][0]",
    "entries of a dictionary that a call makes": "for k, x in dict(a=reward, b=target).items():\n"
    "    target = target + x * len(k)",
    "entries from keys": "d = dict.fromkeys(('a', 'b'), 2.0)\nd |= {'b': reward}\n"
    "target = d['a'] * d['b']",
    "a method of a text": "d = {'a_loss': reward, 'b': target}\n"
    "target = sum(v for k, v in d.items() if k.endswith('loss'))",
    "a dictionary has entries": "d = {}\nif not d:\n    d['a'] = reward\n"
    "if (e := d):\n    target = e['a']",
    "parts of means": "_, m = msrl.gradient(self.loss, self.net, obs, action, target)\n"
    "d = dict(zip(('b',), m[1:]))\nfor x in m:\n    target = reward * x + d['b']",
    "the one mean of a function": "def one(k):\n    f = lambda o, a, t: k * self.loss(o, a, t)[0]\n"
    "    g, m = msrl.gradient(f, self.net, obs, action, target)\n    return g, m\n"
    "target = reward * one(2.0)[1]",
    "sizes of what operators leave": "x = (obs.swapaxes(0, 1) * 2.0).swapaxes(0, 1).sum(-1)\n"
    "xs = [0.0 for _ in range(x.shape[0])]\ntarget = reward * len(xs)",
    "update by pairs": "d = {}\nd |= zip(('a', 'b'), (reward, target))\n"
    "d.update(zip('c', (2.0,)))\ntarget = d['a'] * d['c']",
    "a mean over a comprehension": "d = {'a': [msrl.mean(reward), 2.0]}\n"
    "target = reward * np.mean([2.0 * x for x in d['a']]) + np.mean(d['a'])",
    "the one mean as a tuple elsewhere": "def one():\n    g, m = msrl.gradient(lambda o, a, t: "
    "-self.loss(o, a, t)[0], self.net, obs, action, target)\n    return m, g\n"
    "means, _ = one()\ntarget = reward * means[0]",
    "a helper that draws, in a loop that sets entries": "d = {}\nfor k in range(2):\n"
    "    d['a'] = msrl.mean(self.halved(msrl, reward))\ntarget = reward * d['a']",
    "the length before an entry is made": "d = defaultdict(list)\nd['a'].append(reward)\n"
    "n = len(d)\nd['b'].append(2.0)\nassert n == 1\ntarget = d['a'][0]",
    "zip of means": "_, m = msrl.gradient(self.loss, self.net, obs, action, target)\n"
    "d = dict(zip(('a', 'b'), m))\ntarget = reward * d['b']",
}


HELPER = (
    "    def learn(self, msrl, batch):",
    "    def made(self, x):\n        return Pair(x, 2.0 * x)\n\n"
    "    def halved(self, msrl, x):\n        for (y,) in msrl.minibatches(2, (x,)):\n"
    "            z = msrl.mean(y)\n        return z\n\n"
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


MADE_FIRST = {
    "a sum from 0.0": "total = 0.0\nfor k in range(3):\n    total = total + 0.5 * reward[k]",
    "a sum from 0, for each": "total = 0\nfor k in range(3):\n    total += reward[k]",
    "a name": "for k in range(3):\n    if k == 0:\n        total = reward[0]\n    else:\n"
    "        total = ops.maximum(total, reward[k])",
}


@pytest.mark.parametrize("case", MADE_FIRST)
def test_a_loop_whose_first_turn_makes_a_variable_is_unrolled(case, tmp_path):
    program = build_with(tmp_path, learn=MADE_FIRST[case] + "\ntarget = reward - total")
    assert "range" not in [getattr(item, "kind", "") for item, _ in paths(program.body)]


def test_a_loop_over_range_that_changes_an_array_is_not_unrolled(tmp_path):
    lines = "b = reward > 1.0\nfor i in range(3):\n    b |= reward > 0.0\ntarget = reward * b"
    program = build_with(tmp_path, learn=lines)
    assert "range" in [getattr(item, "kind", "") for item, _ in paths(program.body)]


def test_draws_of_turns_outside_loops_are_rows_with_numbers(tmp_path):
    """MindSpore takes the row of a table by a number or a tensor, not by a constant expression."""
    program = build_with(tmp_path, learn="a, b = (msrl.uniform(8, 1) for _ in range(2))")
    rows = [op.args[1] for op, _ in walk(program.body) if op.kind == "index"]
    assert rows[-2:] == ["0", "1"]


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
        for x in obs[0]:
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


def test_what_learn_gets_beside_the_batch_has_its_mark(tmp_path):
    learn = ("learn(self, msrl, batch)", "learn(self, msrl, batch, last, more)")
    call = ("agent_learn(batch)", 'agent_learn(batch, obs, (2.0 * obs, {"first": obs}))')
    act = ("action = msrl.agent_act(obs)", "action, *_ = msrl.agent_act(obs)")
    two = "def act(self, obs, noise):\n        return super().act(obs, noise), 0.0 * obs\n\n"
    two = ("class Learn", f"class Two(Act):\n    {two}class Learn")
    made = ("self.actor, self.learner = Act(net)", "self.actor, self.learner = Two(net)")
    code = "target = target + 0.1 * self.net.value(last) + (more[0] * more[1]['first'])[:, 0]"
    start = (ITERATIONS, f"        seen = 0.0\n{ITERATIONS}")
    told = ("obs})))", "obs}))); msrl.report({'seen': seen, 'large': ops.square(seen)})")
    program = program_with(
        tmp_path,
        (start, learn, call, told, act, two, made),
        learn=code,
        loop="seen += msrl.sum(reward)",
    )
    job = inproc.request(program, "SingleLearnerCoarse", 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []
