"""Epochs: each record once, in a random order, with any number of ranks."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from mindspore_rl.datasets.epochs import Epochs, Permutation
from mindspore_rl.errors import ReplayError
from tests.tiers import quick

MIN_P = 1e-4
"""Bound of a p-value: all numbers are fixed, so a test that passes once always passes."""


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 1000, 65_537])
def test_it_is_a_permutation(count):
    found = Permutation(3, 1, count)(np.arange(count))
    np.testing.assert_array_equal(np.sort(found), np.arange(count))


def test_a_billion_places_take_no_memory_of_their_own():
    permutation = Permutation(3, 1, 10**9)
    places = np.arange(0, 10**9, 9973)
    found = permutation(places)
    assert len(np.unique(found)) == len(places)
    assert found.min() >= 0 and found.max() < 10**9
    counts = np.bincount(found * 100 // 10**9)
    assert stats.chisquare(counts).pvalue > MIN_P
    assert permutation._functions.nbytes < 1 << 22


@pytest.mark.parametrize("count", quick([3, 5], 0))
def test_all_orders_of_few_are_equally_frequent(count):
    found = [tuple(Permutation(1, epoch, count)(np.arange(count))) for epoch in range(1200)]
    orders = dict.fromkeys(itertools.permutations(range(count)), 0)
    for order in found:
        orders[order] += 1
    assert len(orders) == math.factorial(count)
    assert stats.chisquare(list(orders.values())).pvalue > MIN_P


@pytest.mark.parametrize("count", [20, 300])
def test_every_place_is_equally_often_everyones(count):
    found = np.array([Permutation(1, epoch, count)(np.arange(count)) for epoch in range(1000)])
    tables = np.zeros((count, count))
    np.add.at(tables, (np.arange(count)[None].repeat(len(found), 0), found), 1)
    if count == 300:  # in tenths, so that each is expected often enough
        tables = tables.reshape(10, 30, 10, 30).sum((1, 3))
    assert stats.chisquare(tables.ravel(), ddof=2 * len(tables) - 2).pvalue > MIN_P


def test_neighbours_do_not_stay_neighbours():
    """Every number follows any other equally often, at any distance."""
    count = 64
    found = np.array([Permutation(1, epoch, count)(np.arange(count)) for epoch in range(400)])
    distances = np.diff(found, axis=1) % count
    assert stats.chisquare(np.bincount(distances.ravel(), minlength=count)[1:]).pvalue > MIN_P


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("count", [5, 100, 1001])
def test_ranks_share_what_one_would_have(count, ranks):
    one = Epochs(7, count, 12)
    all_of_them = [Epochs(7, count, 12, np.arange(rank, 12, ranks)) for rank in range(ranks)]
    for step in (0, 1, 2, 50, 8):
        parts = [rank.part(step) for rank in all_of_them]
        np.testing.assert_array_equal(np.stack(parts, 1).ravel(), one.part(step))


def test_each_epoch_has_each_once_and_an_order_of_its_own():
    count = 50
    epochs = Epochs(7, count, 15)
    found = np.concatenate([epochs.part(step) for step in range(10)]).reshape(3, count)
    np.testing.assert_array_equal(np.sort(found), np.tile(np.arange(count), (3, 1)))
    assert len({tuple(order) for order in found}) == 3
    for other in (Epochs(8, count, 15), Epochs(7, count, 15, purpose="another")):
        assert (np.concatenate([other.part(step) for step in range(10)]) != found.ravel()).any()


def test_numbers_are_looked_at():
    with pytest.raises(ReplayError, match="a batch of 0"):
        Epochs(1, 9, 0)
    with pytest.raises(ReplayError, match="seed is -1"):
        Epochs(-1, 9, 3)
