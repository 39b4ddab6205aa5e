"""Python that MindSpore does not compile, and the package makes it take."""

import enum
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.errors import ProgramError
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.operators import leaves
from mindspore_rl.rl.parameters import list_parameters


def clipped(start, end, done):
    """Decides between an array and a number in each way."""
    scale, low = 1.0, done if done < 0.5 else 0.5
    if done > 0.25:
        scale = 0.5 / done
    elif done < 0.125:
        scale *= 0.5
    if done >= 1.0:
        return end
    if done < 0.0:
        kept, scale = start, 0.5 * scale
    else:
        kept = done * start
    return kept + scale * (low + np.log(1.0) * low)


def linear_schedule(start, end, duration, step):
    slope = (end - start) / duration
    ends = [clipped(1.0, 0.25, step / by) for by in (-10.0, 2.0, 10.0, 25.0, 100.0)]
    extremes = min(step, 3.0), max(1, 2), max(step, 2 * step)
    return max(slope * step + start, end), *extremes, *[1.0 * end for end in ends]


def scaled(x, by, shift=0.0):
    return by * x + shift


def schedules(value):
    return {
        "constant": lambda progress: value * (progress > -1.0),
        "linear": lambda progress: value * progress, "square": lambda progress: progress**2,
    }  # fmt: skip


class Mode(enum.Enum):
    ONE, TWO, THREE = "one", "two", "three"


def by_mode(x, mode, more):
    match mode:
        case Mode.ONE | Mode.TWO:
            return 2.0 * x
        case Mode.THREE if more:
            return x
        case _:
            return 3.0 * x


def shares(x, count):
    for k in range(count):
        if k == 1:
            yield 0.5 * x
        yield 0.125 * x


class Box:
    """Has a method of the same name as a Parameter's."""

    def set_data(self, value):
        return 3.0 * value


class Written(nn.Cell):
    """Steps of a program, as CleanRL has them."""

    def __init__(self):
        super().__init__()
        self.online = Parameter(Tensor([1.0, 2.0]), name="online")
        self.target = Parameter(Tensor([0.0, 0.0]), name="target")
        self.rate = Parameter(Tensor(1.0), name="rate")
        self.box = Box()
        self.schedule = schedules(0.5)["linear"]
        self.scaled = functools.partial(scaled, by=2.0)
        first, shared, last = (nn.Dense(1, 1, "zeros", has_bias=False) for _ in range(3))
        last.weight.requires_grad = False
        pairs = ((first, shared), (shared, last))
        self.layers = nn.CellList([nn.SequentialCell(*pair) for pair in pairs])
        list_parameters(self)

    def count(self):
        if self.rate > 0.0:
            for target in (self.target, self.online):
                if self.box is None:
                    return
                ops.assign(self.rate, self.rate + target.sum())
        ops.assign(self.rate, self.rate * 2)

    def construct(self, step, x):
        return self.again(step, x) if x.ndim else 2.0 * step

    def again(self, step, x):
        for target, online in zip((self.target,), (self.online,), strict=True):
            target.set_data(0.5 * online + target)
        for weight in self.layers.trainable_params():
            weight.set_data(weight + 1.0)
        for weight in self.layers.get_parameters():
            weight.set_data(2.0 * weight + 3.0)
        self.rate.set_data(self.box.set_data(step))
        self.count()
        going, returns = 0.0, []
        for t in reversed(range(len(x))):
            going = x[t] + 0.5 * going
            returns.append(going)
        for t in reversed(range(1, 3)):
            going = going + t * x[t]
        going = self.scaled(self.schedule(going), shift=0.0)
        going = by_mode(by_mode(going, Mode("two"), x.ndim > 3), Mode.THREE, x.ndim > 3) / 6.0
        for k, share in enumerate(shares(going, 4)):
            going = going + k * (share - going * (0.5 if k == 1 else 0.125))
        return self.linear_schedule(step), ops.stack(returns[::-1]), self(going, step)

    def linear_schedule(self, step):
        ends = [linear_schedule(1.0, end, 10, step) for end in (0.25, 0.5)]
        return ends[0]


class Mean(nn.Cell):
    """Has methods of the same names as a list's, and as an event's of MindSpore."""

    def __init__(self):
        super().__init__()
        self.mean = Parameter(Tensor([1.0]), name="mean")

    def update(self, x):
        ops.assign(self.mean, 0.5 * self.mean + x)

    def record(self, x):
        ops.assign(self.mean, 3.0 * self.mean + x)


class Parts(NamedTuple):
    double: Any
    half: Any


class Base(nn.Cell):
    def of_class(self, x):
        return 2.0 * x


class Middle(Base):
    def of_class(self, x):
        return 5.0 * x

    def of_base(self, x):
        return super().of_class(x)


class Natural(Middle):
    """Forms of Python that are natural in losses and updates."""

    factor = 3.0

    def __init__(self):
        super().__init__()
        self.means, self.mode = nn.CellList([Mean(), Mean()]), Mode.TWO
        self.places = 2
        names = [f"of_pair_{k}" for k in range(4)]
        a, b, c, d = (Parameter(Tensor([float(k)]), name=name) for k, name in enumerate(names))
        self.pairs = [(a, b), (c, d)]

    def updated(self, x):
        self.means[1].record(x)
        for mean in self.means:
            mean.update(x)
            mean.update(2.0 * x)
            mean.record(mean.mean)
        last = self.means[-1]
        last.record(x)
        return self.means[0].mean + 0.0, last.mean + 0.0

    def joined(self, x):
        pairs = list(zip(self.pairs, [(x[:1], x[1:2]), *self.pairs[:-1]], strict=True))
        first, second = pairs[0][0]
        before = first.clone()
        ops.assign(first, second)
        ops.assign(second, before)
        for old, new in reversed(pairs):
            for one, other in zip(old, new, strict=True):
                ops.assign(one, other)
        return [one + 0.0 for one in itertools.chain(*self.pairs)]

    def parts(self, x):
        return Parts(double=2.0 * x, half=0.5 * x)

    def halved(self, x, times):
        return x if times == 0 else self.halved(0.5 * x, times - 1)

    def of_parts(self, x):
        parts = self.parts(self.halved(x, 3))
        double, half = self.parts(parts.half)
        return parts.double - double * half

    @classmethod
    def scaled(cls, x):
        return cls.factor * x

    def metrics(self, x):
        found = dict(zip(("one", "two"), [x, 2.0 * x], strict=True))
        found = {**found, "two": 3.0 * x, **dict(found, four=4.0 * x)} | {"five": 5.0 * x}
        found |= {f"{k}_{a}": k * x for k in range(2) for a in ("six", "seven")}
        if "two" in {"three", *found} and "one" not in {"three"}:
            found["last"] = sum(found.values())
        return list(found.values())

    def iterated(self, x):
        several = [x, 2.0 * x, 4.0 * x]
        total = functools.reduce(ops.minimum, several)
        total = total + functools.reduce(lambda a, b: 0.5 * a + b, several, ops.zeros_like(x))
        for k, one in enumerate(reversed(several)):
            total = total + k * one
        for one, other in itertools.pairwise(itertools.chain(several, [x])):
            total = total + one * other
        for one, factor in itertools.product(several, itertools.repeat(0.5, 2)):
            total = total + one * factor
        for one in map(lambda one, other: one * other * x, several, itertools.islice(several, 2)):
            total = total + one
        for one in itertools.chain.from_iterable([several, several]):
            total = 0.5 * total + one
        total = total + sum(a * b for a in several for b in (0.5, 2.0) if b > 0.5)
        kept = {"a": [], "b": []}
        for _ in range(2):
            for key, one in zip(kept, several, strict=False):
                kept[key].append(one)
        for mean, one in zip(self.means[1:], kept.values(), strict=False):
            total = total + sum(one) * mean.mean
        total = total + sum([pair * b for one in self.pairs for pair in one for b in (1.0, 2.0)])
        return total, *itertools.accumulate(several, initial=x)

    def construct(self, x):
        return (
            self.of_base(x),
            self.updated(x[:1]),
            self.joined(x),
            self.of_parts(x),
            [part(x) for part in [functools.partial(scaled, by=2.0**k) for k in range(3)]],
            (x * x[:, None]).argmax() - ops.stack([x, 2.0 * x]).argmax(),
            self.scaled(x) + Natural.scaled(x),
            self.metrics(x),
            x * 10**-3 + 10**12 % 7 + self.places**-1,
            (x[None] * x[:, None]).max(-1)[0]
            + x.max()
            + ops.max(x, 0)[0]
            + x[None].min(1, True)[0],
            x if self.mode is Mode.TWO and self.mode is not Mode.ONE else 2.0 * x,
            self.iterated(x),
        )


def test_natural_forms_are_compiled_as_python_computes_them():
    x = Tensor([1.0, -2.0, 3.0])
    plain = Natural()
    known, names = plain.construct(x), [p.name for p in Natural().get_parameters()]
    assert [p.name for p in plain.get_parameters()] == names
    mindspore_device.use(compiled=True)
    try:
        found = Natural()(x)
    finally:
        mindspore_device.use()
    for one, other in zip(leaves(found), leaves(known), strict=True):
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), 1e-6)


def read_later(self, x):
    scale = 1.0

    def scaled(x):
        return scale * x

    for _ in range(2):
        scale = 2.0 * scaled(x)
    return scale


def scaled_by_each(self, x):
    return sum(scaled(x) for scaled in [lambda v: v * by for by in (1.0, 2.0)])  # noqa: B023


def same_cell(self, x):
    return x if self.means[0] is self.means[1] else 2.0 * x


def tried(self, x):
    try:
        return 2.0 * x
    except ValueError:
        return x


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (tried, "no `try`: leave it out"),
        (read_later, "`scale`, which changes before it is called"),
        (scaled_by_each, "lambda that reads `by` of a comprehension"),
        (same_cell, r"`self.means\[0\] is self.means\[1\]` may compare objects"),
    ],
)
def test_python_that_mindspore_takes_for_another_is_refused(function, why, monkeypatch):
    monkeypatch.setattr(Natural, "construct", function)
    mindspore_device.use(compiled=True)
    try:
        with pytest.raises(ProgramError, match=rf"{__file__}:\d+: .*{why}"):
            Natural()(Tensor([1.0]))
    finally:
        mindspore_device.use()


def test_a_compiled_cell_computes_what_python_does():
    given, x = Tensor(5.0), Tensor([1.0, 2.0, 4.0, 8.0])
    (epsilon, least, *most), returns, going = Written().construct(given, x)
    mindspore_device.use(compiled=True)
    try:
        cell = Written()
        (epsilon_2, least_2, *most_2), returns_2, going_2 = cell(given, x)
    finally:
        mindspore_device.use()
    known = [0.625, 3.0, 2.0, 10.0, 0.875, 0.25, 1.0, 0.4, 0.075]
    np.testing.assert_allclose([float(v) for v in (epsilon_2, least_2, *most_2)], known, 1e-6)
    np.testing.assert_allclose([float(v) for v in (epsilon, least, *most)], known, 1e-6)
    np.testing.assert_array_equal(returns_2.asnumpy(), returns.asnumpy())
    assert float(going_2) == float(going) == 28.0
    np.testing.assert_array_equal(cell.target.asnumpy(), [0.5, 1.0])
    assert [float(p) for p in cell.layers.get_parameters()] == [5.0, 5.0, 3.0]  # each once
    assert float(cell.rate) == 2 * (15.0 + 1.5 + 3.0)
