"""Random algorithms: loops, conditions, helpers, replays and statistics in an agent's file.

Only what docs/add_an_algorithm.md allows is written, so a refusal of such a program is a mistake.
"""

import random

HEAD = '''"""Random program {seed}."""

from functools import partial
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.rl.statistics import moments
from tests.programs.small_agents import BaseLearner, SmallTrainer


class Pair(NamedTuple):
    one: Any
    two: Any


class Step(NamedTuple):
    obs: Any
    action: Any
    reward: Any


def bounded(n):
    return n / (1.0 + abs(n))


def squashed(x, low=0.2):
    return ops.tanh(x) + low


class Learn(BaseLearner):
    def __init__(self, net, config):
        super().__init__(net, config)
        self.optimizer = nn.SGD(net.trainable_params(), 0.02)
        self.seen = Parameter(Tensor([0.5], ms.float32), name="seen")

    def follow(self, x):
        ops.assign(self.seen, 0.9 * self.seen + 0.1 * bounded(x) * ops.ones((1,)))

'''
UNARY = (
    "ops.tanh({0})", "ops.abs({0}) - 0.3", "-{0}", "0.5 * {0} + 0.1", "squashed({0})",
    "squashed({0}, low=-0.1)", "ops.square(ops.tanh({0}))",
)  # fmt: skip
BINARY = ("{0} + {1}", "{0} - 0.5 * {1}", "{0} * ops.tanh({1})", "ops.maximum({0}, {1})")
ARRAYS = (*UNARY, *BINARY, "ops.where({0} > 0.1, {1}, {0})", "{0} - msrl.mean({1})", "{0} * {n}")
NUMBERS = ("{n} + {m}", "0.3 * {n} - {m}", "bounded({n})", "msrl.mean({0})", "msrl.max({0})")
NUMBERS += ("max({n}, {m})", "min({n}, 0.4)", "{n} if {c} else {m}", "msrl.mean({0} * {1})")
CONDITIONS = ("{n} > 0.21", "{n} < {m}", "{n} > 0.1 and {m} < 0.7", "not {n} > 0.4", "{k} % 2 == 1")
CONDITIONS += ("{k} > 1", "msrl.mean({0}) > 0.13", "self.config.extra", "{k} == 0 or {n} < 0.3")


class Writer:
    """Writes the body of a function that takes `msrl`."""

    def __init__(self, rng, arrays, numbers, keeps, data, helpers=(), drawn=False):
        self.rng, self.lines, self.count = rng, [], 0
        self.arrays, self.numbers, self.counters = list(arrays), list(numbers), []
        self.keeps, self.data, self.helpers, self.drawn = keeps, data, helpers, drawn
        self.gradients, self.loops, self.lists, self.nested = 2, 0, [], 0
        self.tables, self.pairs, self.functions = [], [], []
        self.metrics = 0

    def fill(self, text):
        """Replaces the places of an expression by variables."""
        pick = self.rng.choice
        condition = text.replace("{c}", pick(CONDITIONS))
        counter = pick(self.counters) if self.counters else str(pick((0, 1, 2)))
        arrays, numbers = self.arrays, self.numbers
        return condition.format(
            pick(arrays), pick(arrays), n=pick(numbers), m=pick(numbers), k=counter
        )

    def add(self, depth, line):
        self.lines.append("    " * depth + line)

    def name(self, kind):
        self.count += 1
        return f"{kind}{self.count}"

    def assign(self, depth, known, texts, prefix):
        value = self.fill(self.rng.choice(texts))
        old = self.rng.random() < 0.4
        name = self.rng.choice(known) if old else self.name(prefix)
        self.add(depth, f"{name} = {value}")
        if not old:
            known.append(name)

    def block(self, depth, statements, exits=False):
        """Writes statements whose new names end with them."""
        kept = ("arrays", "numbers", "lists", "tables", "pairs", "functions")
        before = {name: list(getattr(self, name)) for name in kept}
        self.nested += 1
        for _ in range(statements):
            self.statement(depth)
        if exits and self.rng.random() < 0.5:
            self.add(depth, f"if {self.fill(self.rng.choice(CONDITIONS[:4]))}:")
            self.add(depth + 1, self.rng.choice(("break", "continue")))
            self.statement(depth)
        self.nested -= 1
        vars(self).update(before)

    def condition(self, depth):
        self.add(depth, f"if {self.fill(self.rng.choice(CONDITIONS))}:")
        self.block(depth + 1, self.rng.randint(1, 3))
        if self.rng.random() < 0.3:
            self.add(depth, f"elif {self.fill(self.rng.choice(CONDITIONS))}:")
            self.block(depth + 1, 1)
        if self.rng.random() < 0.5:
            self.add(depth, "else:")
            self.block(depth + 1, self.rng.randint(1, 2))

    def loop(self, depth):
        kind = self.rng.choice(("range", "range", "epochs", "while", "enumerate"))
        counter, self.loops = self.name("k"), self.loops + 1
        if kind == "while":
            self.add(depth, f"{counter} = 0")
            self.add(depth, f"while {counter} < 3 and {self.fill('{n} < 0.8')}:")
            self.add(depth + 1, f"{counter} += 1")
        elif kind == "range":
            ends = self.rng.choice(("3", "1, 3", "0, 4, 2"))
            self.add(depth, f"for {counter} in range({ends}):")
        elif kind == "epochs":
            self.add(depth, f"for {counter} in msrl.epochs(2):")
        else:
            value = self.name("n")
            self.add(depth, f"for {counter}, {value} in enumerate({self.several()}):")
            self.numbers.append(value)
        self.counters.append(counter)
        self.block(depth + 1, self.rng.randint(1, 3), kind in ("range", "epochs"))
        if kind == "enumerate":
            self.numbers.remove(value)
        self.counters.remove(counter)
        self.loops -= 1

    def minibatches(self, depth):
        target = self.rng.choice(self.arrays)
        self.add(depth, f"for part in msrl.minibatches(2, ({self.data}, {target})):")
        self.loops += 1
        self.update(depth + 1, "*part")
        if self.rng.random() < 0.4:
            self.add(depth + 1, f"if {self.fill('{n} > 0.35')}:")
            self.add(depth + 2, "break")
        self.loops -= 1

    def update(self, depth, data):
        loss = "self.loss"
        if self.rng.random() < 0.3:
            loss, number = self.name("loss"), self.rng.choice(self.numbers)
            self.add(depth, f"def {loss}(obs, action, target):")
            self.add(depth + 1, f"return self.loss(obs, action, target + 0.1 * {number})")
        elif self.rng.random() < 0.3:
            loss = "lambda obs, action, x: self.loss(obs, action, 0.5 * x)"
        means = self.rng.choice(("means", "(value, log_prob)"))
        self.add(depth, f"grads, {means} = msrl.gradient({loss}, self.net, {data})")
        if self.rng.random() < 0.3:
            self.add(depth, "grads = tuple(0.5 * g for g in grads)")
        if self.rng.random() < 0.3:
            self.add(depth, f"if {self.fill('{n} > -0.3')}:")
            self.add(depth + 1, "msrl.update(self.apply, grads)")
        else:
            self.add(depth, "msrl.update(self.apply, grads)")
        old = self.rng.choice(self.numbers)
        self.add(depth, f"{old} = {'means[0]' if means == 'means' else 'value - log_prob'}")

    def gradient(self, depth):
        if not self.gradients:
            self.assign(depth, self.numbers, NUMBERS, "n")
            return
        self.gradients -= 1
        choice = self.rng.random()
        if choice < 0.3 and not self.drawn:
            self.minibatches(depth)
        elif choice < 0.6 and self.keeps:
            count = self.rng.choice((8, 16, 16, 12))
            way = self.rng.choice(("", "", "", ', "uniform"', ', "priority"', ", steps=2"))
            if self.nested:
                way = self.rng.choice(("", ", steps=2"))
            taken = "own, ids, odds" if "priority" in way else "own"
            self.add(depth, f"{taken} = msrl.replay_sample({count}{way})")
            if "priority" in way:
                self.add(depth, "msrl.replay_update(ids, 0.1 + ops.abs(own.reward) * odds)")
            if "steps" in way:
                self.update(depth, "own.obs[:, 1], own.action[:, 0], own.reward.sum(-1)")
            elif self.rng.random() < 0.4:
                self.add(depth, f"noise = msrl.uniform({count}, 2)")
                self.update(depth, "own.obs, own.action, own.reward + noise.sum(-1)")
            else:
                data = ("*own", "own.obs, own.action, 0.5 * own.reward")
                self.update(depth, self.rng.choice(data))
        else:
            self.update(depth, f"{self.data}, {self.rng.choice(self.arrays)}")

    def statistics(self, depth):
        first, second = self.name("n"), self.name("n")
        array = self.rng.choice(self.arrays)
        ways = ("moments(msrl, {0})", "msrl.mean({0}, {1})", "msrl.max({0}, {1})")
        text = self.rng.choice((*ways, "msrl.mean(ops.stack(({0}, {1}), -1), keep=1)"))
        self.add(depth, f"{first}, {second} = {text.format(array, self.rng.choice(self.arrays))}")
        self.numbers += [first, second]

    def state(self, depth):
        if self.rng.random() < 0.5:
            self.add(depth, f"msrl.update(self.follow, {self.rng.choice(self.numbers)})")
        else:
            self.add(depth, f"{self.rng.choice(self.arrays)} = self.seen[0] * {self.fill('{0}')}")

    def listed(self, depth):
        if not self.lists:
            name = self.name("xs")
            self.add(depth, f"{name} = [{self.fill('{n}')}]")
            self.lists.append(name)
        elif self.rng.random() < 0.6:
            name = self.rng.choice(self.lists)
            self.add(depth, f"{name}.append({self.fill('0.5 * {n}')})")
        else:
            text = self.rng.choice(("sum({0}) / len({0})", "max({0})", "{0}[-1]"))
            name = self.rng.choice(self.numbers)
            self.add(depth, f"{name} = {text.format(self.rng.choice(self.lists))}")

    def metric(self, depth):
        if not self.metrics:
            self.listed(depth)
            return
        self.metrics += 1
        key = f"e{self.rng.randint(1, 3)}"
        way = self.rng.choice(('metrics["{k}"] = {v}', 'metrics |= {{"{k}": {v}}}'))
        self.add(depth, way.format(k=key, v=self.fill("1.0 * {n}")))

    def helper(self, depth):
        if not self.helpers:
            self.listed(depth)
            return
        name = self.rng.choice(self.helpers)
        new = self.name("n"), self.name("a")
        self.add(depth, ", ".join(new) + self.fill(f" = self.{name}(msrl, {{0}}, {{n}})"))
        self.numbers.append(new[0])
        self.arrays.append(new[1])

    def backwards(self, depth):
        array, new = self.rng.choice(self.arrays), self.name("a")
        turn, carried = self.name("t"), self.name("g")
        self.add(depth, f"{new}, {carried} = ops.zeros_like({array}), ops.zeros_like({array}[0])")
        steps = self.rng.choice(("self.config.num_steps", "batch.reward.shape[0]"))
        steps = steps if self.data and not self.drawn else "self.config.num_steps"
        ends = self.rng.choice((f"reversed(range({steps}))", f"range({steps})"))
        self.add(depth, f"for {turn} in {ends}:")
        self.add(depth + 1, f"{carried} = {array}[{turn}] + 0.5 * {carried}")
        if self.rng.random() < 0.4:
            self.add(depth + 1, f"if {turn} == {steps} - 1:")
            self.add(depth + 2, f"{carried} = 0.5 * {carried}")
        self.add(depth + 1, f"{new}[{turn}] = {carried}")
        self.arrays.append(new)

    def several(self):
        """Returns a sequence of numbers."""
        one, two, three = self.rng.choices(self.numbers, k=3)
        ways = [f"({one}, {two}, {three})", f"reversed([{one}, {two}])", f"[{one}, 0.5 * {two}]"]
        ways += [f"(x * {one} for x in ({two}, {three}))"]
        ways += [f"{name}.values()" for name in self.tables]
        ways += self.lists if not self.loops else []
        return self.rng.choice(ways)

    def together(self, depth):
        """Writes a loop over two sequences at once, or a sum over one."""
        if self.rng.random() < 0.5:
            way = self.rng.choice(("sum({0})", "max({0})", "sum([0.5 * x + {n} for x in {0}])"))
            name = self.rng.choice(self.numbers)
            self.add(depth, f"{name} = " + self.fill(way.replace("{0}", self.several())))
            return
        pair = self.name("n"), self.name("n")
        self.add(depth, f"for {', '.join(pair)} in zip({self.several()}, {self.several()}):")
        self.numbers += pair
        self.loops += 1
        self.block(depth + 1, self.rng.randint(1, 2))
        self.loops -= 1
        for name in pair:
            self.numbers.remove(name)

    def table(self, depth):
        """Makes, changes or reads a dictionary of numbers."""
        if not self.tables or self.rng.random() < 0.2:
            self.tables.append(self.name("d"))
            self.add(depth, f'{self.tables[-1]} = {{"a": {self.fill("{n}")}, "b": 0.25}}')
            return
        name, key = self.rng.choice(self.tables), self.rng.choice("ab")
        ways = (f'{name}["{key}"] = {{n}} + 0.1', f'{name}["{key}"] += 0.5 * {{n}}')
        ways += (f"{name} = {{{{k: 0.5 * v + {{n}} for k, v in {name}.items()}}}}",)
        ways += (f"{name} = {{{{**{name}, '{key}': {{n}}}}}}",)
        ways += (f'{name} = {{{{"a": {{n}}, "b": {{m}}}}}}',)
        ways += tuple(f'{n} = {name}["{key}"]' for n in self.rng.choices(self.numbers, k=2))
        self.add(depth, self.fill(self.rng.choice(ways)))

    def pair(self, depth):
        """Makes, changes or reads a tuple or a record of two numbers."""
        if not self.pairs or self.rng.random() < 0.2:
            self.pairs.append(self.name("p"))
            way = self.rng.choice(("({n}, {m})", "Pair({n}, two={m})"))
            self.add(depth, f"{self.pairs[-1]} = {self.fill(way)}")
            return
        name, (one, two) = self.rng.choice(self.pairs), self.rng.choices(self.numbers, k=2)
        kind = "Pair" if any(f"{name} = Pair" in line for line in self.lines) else ""
        ways = [f"{name} = {kind}({name}[1], 0.5 * {name}[0] + {{n}})", f"{one} = {name}[0]"]
        ways += [f"{one} = {name}[1] + {{m}}"] + [f"{one}, {two} = {name}"] * (one != two)
        ways += [f"{name} = {name}._replace(one={{n}})", f"{one} = {name}.two"] * (kind != "")
        self.add(depth, self.fill(self.rng.choice(ways)))

    def function(self, depth):
        """Writes a function within this one, or a call of one."""
        if self.functions and self.rng.random() < 0.7:
            name, new = self.rng.choice(self.functions), self.name("n")
            ways = ("({n})", "({n}, {m})", "({n}, z={m})", "(y={n}, x={m})")
            self.add(depth, f"{new} = {name}{self.fill(self.rng.choice(ways))}")
            self.numbers.append(new)
            return
        name = self.name("f")
        self.add(depth, self.fill(f"def {name}(x, y={{n}}, *, z=0.5):"))
        lines = ["x = 0.5 * x + y", "x, y = y, x + 0.1", "y = bounded(x) + {n}"]
        for line in self.rng.sample(lines, self.rng.randint(1, 2)):
            self.add(depth + 1, self.fill(line))
        if self.rng.random() < 0.3:
            self.add(depth + 1, self.fill("if x > {n}:"))
            self.add(depth + 2, "return y * z")
        self.add(depth + 1, self.fill("return x + z * y * {n}"))
        self.functions.append(name)
        if self.rng.random() < 0.3:
            self.functions.append(self.name("f"))
            self.add(depth, f"{self.functions[-1]} = partial({name}, z={self.fill('{n}')})")

    def nest(self, depth):
        """Writes an unrolled loop around loops that draw, one in a loop, or two of minibatches."""
        if self.nested or self.loops or not self.data or self.drawn:
            self.swap(depth)
            return
        name, new = self.rng.choice(self.numbers), self.name("n")
        if self.rng.random() < 0.3:
            one, two = self.rng.choices(self.arrays, k=2)
            parts = f"msrl.minibatches(2, ({one},)), msrl.minibatches(2, ({two},))"
            self.add(depth, f"for (one,), (two,) in zip({parts}):")
            self.add(depth + 1, f"{name} = bounded({name} + msrl.mean(one * two))")
            return
        if self.keeps and self.rng.random() < 0.4:
            kept = self.name("kept")
            self.add(depth, "for _ in msrl.epochs(2):")
            self.add(depth + 1, f"for {new} in (1.0, 0.5):")
            self.add(depth + 2, f"{kept} = msrl.replay_sample(8)")
            self.add(depth + 2, f"{name} = bounded({name} + {new} * msrl.mean({kept}.reward))")
            return
        self.add(depth, f"for {new} in {self.fill('({n}, 0.5, {m})')}:")
        size = self.rng.choice((1, 2))
        self.add(depth + 1, f"{name} = {name} + 0.1 * msrl.mean(msrl.uniform(8, {size}))")
        self.add(depth + 1, "for _ in msrl.epochs(2):")
        draw = f"{new} * msrl.mean(msrl.uniform(8, 1))"
        self.add(depth + 2, f"{name} = bounded({name} + {draw})")
        if self.gradients and self.rng.random() < 0.5:
            self.gradients -= 1
            parts = f"({self.data}, {self.rng.choice(self.arrays)})"
            self.add(depth + 2, f"for part in msrl.minibatches(2, {parts}):")
            self.update(depth + 3, "*part")

    def swap(self, depth):
        one, two = self.rng.sample(self.numbers, 2)
        self.add(depth, f"{one}, {two} = {two}, 0.9 * {one}")

    def statement(self, depth):
        """Writes a statement of a random kind."""
        inner = depth < 5
        kinds = (
            (4, lambda d: self.assign(d, self.arrays, ARRAYS, "a")),
            (5, lambda d: self.assign(d, self.numbers, NUMBERS, "n")),
            (3 * inner, self.condition), (2 * (inner and self.loops < 2), self.loop),
            (2 * (self.loops < 2), self.gradient), (1, self.statistics), (1, self.state),
            (1, self.listed), (1, self.helper), (1, self.swap), (1, self.backwards),
            (2, self.metric), (1, self.together), (2, self.table), (2, self.pair),
            (1, self.function), (1, self.nest),
        )  # fmt: skip
        weights, writers = zip(*kinds, strict=True)
        self.rng.choices(writers, weights)[0](depth)


def _helper(rng, name):
    writer = Writer(rng, ["a"], ["n", "m"], False, "")
    writer.gradients = 0
    writer.add(1, f"def {name}(self, msrl, a, n):")
    writer.add(2, "m = 0.25 * msrl.mean(a)")
    for _ in range(rng.randint(1, 3)):
        writer.statement(2)
        if rng.random() < 0.3:
            writer.add(2, f"if {writer.fill(rng.choice(CONDITIONS))}:")
            writer.add(3, writer.fill("return {n}, {0}"))
    writer.add(2, writer.fill("return 1.0 * {n}, 1.0 * {0}"))
    return [*writer.lines, ""]


def _learn(rng, keeps, helpers, carried, drawn):
    arguments = ", ".join(["batch", *carried])
    data, numbers = "batch.obs, batch.action", ["loss", "top", *carried]
    writer = Writer(rng, ["reward"], numbers, keeps, data, helpers, drawn)
    writer.add(1, f"def learn(self, msrl, {arguments}):")
    writer.add(2, "reward = 0.3 * batch.reward + batch.obs[:, :, 2]")
    writer.add(2, "loss, top = msrl.min(reward), msrl.max(reward)")
    writer.metrics = int(rng.random() < 0.5)
    if writer.metrics:
        writer.add(2, "metrics = {}")
    for _ in range(rng.randint(4, 8)):
        writer.statement(2)
    if writer.gradients == 2:
        writer.gradient(2)
    numbers = [f'"m{i}": 1.0 * {n}' for i, n in enumerate(sorted(set(writer.numbers)))]
    arrays = [f'"s{i}": msrl.mean({a})' for i, a in enumerate(sorted(set(writer.arrays)))]
    writer.add(2, f"metrics {'|=' if writer.metrics else '='} {{{', '.join(numbers)}}}")
    writer.add(2, f"metrics |= {{{', '.join(arrays)}}}")
    carry = ", ".join(f"0.5 * bounded({name})" for name in carried)
    writer.add(2, f"return metrics, ({carry},)" if carried else "return metrics, ()")
    return [*writer.lines, ""]


SHAPED = """    def shaped(self, reward, obs, by=0.1, *, low=None):
        if low is not None:
            reward = ops.maximum(reward, low)
        for k in (1.0, 0.5):
            reward = reward + by * k * obs[:, 1]
        return reward, {"obs": obs, "by": by}
"""
MEMORIES = (
    (
        "memory = Pair(0.0 * obs, two=ops.zeros((self.config.num_envs,)))",
        ("memory = Pair(0.5 * memory.one + obs, two=memory.two + reward)",
         "over = ops.logical_or(ended, cut)",
         "memory = memory._replace(two=ops.where(over, ops.zeros_like(memory.two), memory.two))",
         "reward = reward + 0.1 * memory.two - 0.05 * memory.one.sum(-1)"),
    ),
    (
        "memory = [0.0 * obs, 0.5 * obs]",
        ("memory = [*memory[1:], obs]",
         "reward = reward + 0.1 * sum(x.sum(-1) for x in memory)",
         "for old, new in zip(memory, memory[1:]):",
         "    reward = reward - 0.2 * (new - old)[:, 0]"),
    ),
    (
        'memory = {"seen": 0.0 * obs, "count": ops.zeros((self.config.num_envs,))}',
        ('memory["count"] = memory["count"] + 1.0',
         'memory |= {"seen": 0.9 * memory["seen"] + 0.1 * next_obs}',
         'reward = reward + memory["seen"][:, 2] / memory["count"]',
         'if t == 2:',
         '    memory["count"] = 0.5 * memory["count"]'),
    ),
)  # fmt: skip


def _train(rng, keeps, carried, drawn, asynchronous):
    lines = ["class RandomTrainer(SmallTrainer):", "    Learn = Learn", "", SHAPED]
    lines += ["    def train(self, msrl):", "        obs = msrl.env_reset()"]
    lines += [f"        {name} = {value}" for name, value in carried.items()]
    income, several, late = (rng.random() < 0.4 for _ in range(3))
    if income:
        lines += ["        income = ops.zeros((self.config.num_envs,))"]
    memory = rng.choice((None, None, *MEMORIES))
    if memory:
        lines += [f"        {memory[0]}"]
    counts = not asynchronous and rng.random() < 0.3
    if counts:
        lines += ['        counts = {"updates": 0.0, "late": 0.0}']
    summed = not asynchronous and rng.random() < 0.3
    lines += ["        for _ in msrl.iterations():"] + ["            summed = 0.25"] * summed
    step = rng.choice(("for t in msrl.steps():", "for t in range(4):"))
    lines += [f"            {step}", "                action = msrl.agent_act(obs)"]
    lines += ["                next_obs, final_obs, reward, ended, cut = msrl.env_step(action)"]
    lines += ["                summed += 0.5 * ops.abs(reward)"] * summed
    shaped = "reward"
    if income:
        lines += ["                income = reward + 0.9 * income"]
        lines += ["                income = ops.where(ended, ops.zeros_like(income), income)"]
        shaped = "0.2 * income + reward"
    if memory:
        lines += [f"                {line}" for line in memory[1]]
    if rng.random() < 0.3:
        given = rng.choice(("reward, next_obs", "reward, by=0.2, obs=obs, low=-1.0"))
        lines += [f"                reward, told = self.shaped({given})"]
        lines += ['                reward = reward + told["by"] * told["obs"][:, 0]']
    if rng.random() < 0.4:
        lines += ["                if t % 2 == 1:", "                    reward = 0.5 * reward"]
    if rng.random() < 0.3:
        lines += ["                reward = reward - 0.1 * ops.abs(final_obs).sum(-1)"]
    if rng.random() < 0.3:
        lines += ["                reward = reward + 0.1 * msrl.env_index()"]
    lines += [f"                step = Step(obs, action, {shaped})"]
    if not drawn:
        lines += ["                msrl.replay_insert(step)"]
    if keeps:
        lines += ["                msrl.replay_insert(step, keep=64)"]
    lines += ["                obs = next_obs"]
    if drawn:
        lines += ["            batch = msrl.replay_sample(16, steps=4)"]
        lines += ["            batch = Step(*(ops.swapaxes(x, 0, 1) for x in batch))"]
    else:
        lines += ["            batch = msrl.replay_sample()"]
    arguments = ", ".join(["batch", *carried])
    taken = "(" + "".join(f"{name}, " for name in carried) + ")" if carried else "_nothing"
    learn = f"metrics, {taken} = msrl.agent_learn({arguments})"
    if counts:
        lines += ['            counts["updates"] += 1.0', "            if msrl.env_steps() >= 16:"]
        lines += ['                counts["late"] = counts["updates"] + msrl.mean(batch.reward)']
    more = "{**metrics, **counts}" if counts else "metrics"
    more = f"{{**{more}, 'summed': msrl.mean(summed)}}" if summed else more
    if late and not keeps:
        lines += ["            top = msrl.max(batch.reward)"]
        lines += ["            if msrl.env_steps() >= 16:", f"                {learn}"]
        lines += ['                top = metrics["m0"]', '            msrl.report({"top": top})']
    elif several:
        lines += ["            for _ in range(2):", f"                {learn}"]
        lines += [f"            msrl.report({more})"]
    else:
        lines += [f"            {learn}", f"            msrl.report({more})"]
    return [*lines, ""]


def program(seed, asynchronous=False):
    """Returns: the text of random program `seed`.

    Args:
        seed: of the program.
        asynchronous: whether it is one for an asynchronous schedule, whose learner carries
            parameters only and has one replay.
    """
    rng = random.Random(seed)
    helpers = [f"helper{i}" for i in range(rng.randint(0, 2))]
    keeps = rng.random() < 0.5
    carried = {"ema": "0.0", "goal": "0.5"} if rng.random() < 0.6 and not asynchronous else {}
    lines = [line for name in helpers for line in _helper(rng, name)]
    drawn = keeps and asynchronous
    lines += _learn(rng, keeps, helpers, list(carried), drawn)
    train = _train(rng, keeps, carried, drawn, asynchronous)
    return HEAD.format(seed=seed) + "\n".join([*lines, "", *train])
