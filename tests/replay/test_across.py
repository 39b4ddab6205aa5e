"""Draws from the records of all environments."""

import numpy as np
import pytest

from mindspore_rl.replay.across import drawn_across, drawn_whole
from mindspore_rl.rl.random import uniform

ENVS, EACH, TURNS = 3, 4, 4000


def numbers(turns=TURNS, envs=ENVS, each=EACH):
    return uniform(5, 7, np.arange(turns), np.arange(envs), 2 * each)


def even(records, envs=ENVS):
    return np.full(envs, records)


@pytest.mark.parametrize("records", [(4, 4, 4), (7, 7, 7), (9, 4, 6), (4, 4, 5)])
@pytest.mark.parametrize("distinct", [False, True])
def test_each_record_is_as_likely_as_any_other(records, distinct):
    """Also where an asynchronous run has inserted different numbers for the environments."""
    found = [drawn_across(turn, np.array(records), distinct) for turn in numbers()]
    places = np.array([rows * ENVS + holders for rows, holders in found])
    assert places.shape == (TURNS, EACH, ENVS)
    there = [row * ENVS + env for env in range(ENVS) for row in range(records[env])]
    counts = np.bincount(places.reshape(-1))
    assert np.flatnonzero(counts).tolist() == sorted(there)
    counts, expected = counts[there], TURNS * EACH * ENVS / len(there)
    # With at most 20 degrees of freedom, beyond 52 once in 10,000 times; less without replacement.
    assert ((counts - expected) ** 2 / expected).sum() < 52
    several = [len(np.unique(batch)) < batch.size for batch in places]
    assert any(several) != distinct


@pytest.mark.parametrize("distinct", [False, True])
def test_pairs_of_records_are_as_likely_as_any_other(distinct):
    """Draws do not depend on each other: 3 of 6 records, in all 15 pairs of two others."""
    envs, each, records = 3, 1, 2
    counts = np.zeros((6, 6), int)
    for turn in numbers(6000, envs, each):
        rows, holders = drawn_across(turn, even(records), distinct)
        batch = np.unique(rows * envs + holders)
        counts[np.ix_(batch, batch)] += 1
    pairs = counts[np.triu_indices(6, 1)]
    expected = pairs.mean()
    assert ((pairs - expected) ** 2 / expected).sum() < 46  # 14 degrees: once in 30,000 times


def test_what_an_environment_holds_comes_to_its_own_rows_first():
    for turn in numbers(50):
        _, holders = drawn_across(turn, np.array([9, 12, 8]))
        for env in range(ENVS):
            own = np.count_nonzero(holders[:, env] == env)
            assert own == min(np.count_nonzero(holders == env), EACH)


def test_without_replacement_as_many_as_there_are_is_all():
    rows, holders = drawn_across(numbers(1)[0], even(EACH), distinct=True)
    assert sorted((rows * ENVS + holders).reshape(-1)) == list(range(ENVS * EACH))


def test_every_one_of_many_records_can_be_drawn():
    rows, holders = drawn_across(numbers(1, 8, 500)[0], even(2**30, 8))
    assert 0 <= rows.min() < rows.max() < 2**30
    for bit in range(3):
        assert 0.4 < ((rows * 8 + holders) >> bit & 1).mean() < 0.6
    last = np.full((ENVS, 2 * EACH), np.nextafter(np.float32(1), np.float32(0)))
    assert drawn_across(last, even(5))[0].max() == 4


@pytest.mark.parametrize("by", ["stratified", "uniform", "distinct"])
def test_a_batch_that_is_no_multiple_has_each_record_as_likely(by):
    found = [drawn_whole(turn, even(7), 10, by) for turn in numbers()]
    places = np.array([rows * ENVS + holders for rows, holders in found])
    assert places.shape == (TURNS, 10)
    counts, expected = np.bincount(places.reshape(-1), minlength=21), TURNS * 10 / 21
    assert ((counts - expected) ** 2 / expected).sum() < 52  # see above
    fewest = min(np.bincount(batch % ENVS, minlength=ENVS).min() for batch in places)
    assert (fewest == 3) == (by == "stratified")
    assert all(len(np.unique(batch)) == 10 for batch in places) == (by == "distinct")


@pytest.mark.parametrize("by", ["stratified", "uniform", "distinct"])
def test_a_batch_may_be_smaller_than_the_environments(by):
    found = [drawn_whole(turn, np.array([1, 0, 3]), 2, by) for turn in numbers(200, each=1)]
    seen = {pair for rows, holders in found for pair in zip(rows, holders, strict=True)}
    assert seen == {(0, 0), (0, 2), (1, 2), (2, 2)}
