"""Messages and checkpoints of values that are sharded by environment and by agent."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from mindspore_rl.plan.edges import Edge
from mindspore_rl.plan.plan import FragmentPlan, MessagePlan
from mindspore_rl.plan.value import Value
from mindspore_rl.rl import random
from mindspore_rl.runtime.rank.exchange import Exchange
from mindspore_rl.runtime.rank.state import merge

ENVS, AGENTS, TURNS = 5, 3, 2
VALUES = (
    Value((TURNS, ENVS, AGENTS, 2), "float32", 1, agent_axis=2),
    Value((ENVS, 4), "float32", 0),
    Value((2 * ENVS, AGENTS), "int32", 0, 2, agent_axis=1),
    Value((6,), "float32"),
    Value((), "float32"),
)
FRAGMENTS = {
    "by environment": (((0, 2), (2, 3), (3, 5)), ((0, 3),) * 3),
    "by agent": (((0, 5),) * 2, ((0, 2), (2, 3))),
    "whole": (((0, 5),), ((0, 3),)),
}


def fragment(name):
    shares, agents = FRAGMENTS[name]
    return FragmentPlan(name, "", 0, shares, (), (), (), False, agents)


def share_of(value, whole, fragment, replica):
    """Returns a replica's part, one index at a time."""
    if value.axis is not None:
        first, last = fragment.shares[replica]
        columns = [turn * ENVS + env for turn in range(value.per_env) for env in range(first, last)]
        whole = np.take(whole, columns, value.axis)
    if value.agent_axis is not None:
        whole = np.take(whole, range(*fragment.agents[replica]), value.agent_axis)
    return whole


@pytest.mark.parametrize(("source", "target"), list(itertools.product(FRAGMENTS, repeat=2)))
def test_a_message_arrives_as_the_target_shares_it(source, target):
    wholes = [
        np.arange(1, value.size + 1).reshape(value.shape).astype(value.dtype) for value in VALUES
    ]
    source, target = fragment(source), fragment(target)
    message = MessagePlan("m", "m", "s", "t", VALUES, "", (False,) * len(VALUES), "", 1)
    edge = Edge(message, 0, source, target)
    got = [edge.allocate(j) for j in range(len(target.shares))]
    received = 0
    for i, j in edge.pairs:
        parts = [share_of(v, w, source, i) for v, w in zip(VALUES, wholes, strict=True)]
        data = np.zeros(edge.size(i, j), np.uint8)
        edge.pack(i, j, parts, data)
        edge.unpack(i, j, data, got[j])
        received += data.size
    wanted = 0
    for j, arrays in enumerate(got):
        for value, whole, array in zip(VALUES, wholes, arrays, strict=True):
            part = share_of(value, whole, target, j)
            assert np.array_equal(array, part)
            wanted += part.nbytes
    assert received == wanted  # nothing is sent twice


def test_checkpoints_put_shares_side_by_side():
    whole = np.arange(ENVS * AGENTS).reshape(ENVS, AGENTS)
    by_env = [{f"x|0,{first}|1,0": whole[first:last]} for first, last in ((0, 2), (2, 5))]
    by_agent = [{f"x|0,0|1,{first}": whole[:, first:last]} for first, last in ((0, 2), (2, 3))]
    for parts in (by_env, by_agent, by_env + by_agent, by_agent[::-1]):
        assert np.array_equal(merge([*parts, {"y": np.ones(2)}])["x"], whole)


def test_noise_of_an_agent_does_not_depend_on_the_share():
    def drawn(envs, agents):
        return random.uniform(3, 7, np.arange(4), np.array(envs), 2, agents)

    whole = drawn(range(ENVS), random.all_agents(AGENTS))
    assert whole.shape == (4, ENVS, AGENTS, 2)
    assert len(np.unique(whole)) == whole.size
    part = drawn(range(1, 4), random.Agents(range(1, 3), AGENTS))
    assert np.array_equal(part, whole[:, 1:4, 1:3])


def test_shares_of_a_sum_are_added_up_and_what_all_have_comes_once():
    number = Value((), "float32")
    values = (Value((), "tuple", parts=(Value((3,), "float32"), number)), number)
    source, target = fragment("by environment"), fragment("whole")
    message = MessagePlan("m", "m", "s", "t", values, "", (True, False), "", 1)
    edge = Edge(message, 0, source, target)
    got = edge.allocate(0)
    for i, j in edge.pairs:
        data = np.zeros(edge.size(i, j), np.uint8)
        share = np.full(3, i + 1.0, np.float32)
        edge.pack(i, j, [share, share[0].copy(), np.array(7.0, np.float32)], data)
        edge.unpack(i, j, data, got)
    assert got[0].tolist() == [6.0, 6.0, 6.0]
    assert got[1:] == [6.0, 7.0]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "uint16", "float16", "int64", "float64"]
)
def test_a_message_has_as_many_bytes_as_its_numbers(dtype):
    value = Value((ENVS, 2), dtype, 0)
    pair = Value((), "tuple", parts=(value, Value((), "tuple"), Value((), "none"), value))
    size = np.ones((ENVS, 2), dtype).nbytes
    assert (value.message_bytes, pair.message_bytes) == (size, 2 * size)


NUMBERS = {
    "count": np.int64([2**40 + 1]),
    "bits": np.int32([2**24 + 1]),
    "half": np.float16([1.5, 2]),
}


class Holder(nn.Cell):
    def __init__(self, numbers):
        super().__init__()
        for name, number in numbers.items():
            setattr(self, name, Parameter(Tensor(number), name=name, requires_grad=False))


def test_parameters_arrive_as_they_are():
    """An integer beyond 2^24 has no float32."""
    sender, receiver = (
        SimpleNamespace(actor=Holder({name: array * by for name, array in NUMBERS.items()}))
        for by in (1, 0)
    )
    edge: Any = SimpleNamespace(message=SimpleNamespace(parameters="actor"))
    data = Exchange(None, {}, sender)._parameters(edge)
    assert data.nbytes == sum(array.nbytes for array in NUMBERS.values())
    Exchange(None, {}, receiver)._take_parameters(edge, data)
    for name, array in NUMBERS.items():
        assert np.array_equal(getattr(receiver.actor, name).asnumpy(), array)
