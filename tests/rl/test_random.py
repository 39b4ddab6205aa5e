import subprocess
import sys

import numpy as np
import pytest
from mindspore import int32, ops

from mindspore_rl.rl import random, random_graph

SEED, PURPOSE = 2**31 + 7, random.stream("action")


def blocks(key, counter):
    words = random.threefry_2x32(
        random.key_schedule(*key),
        np.array([counter[0]], np.uint32),
        np.array([counter[1]], np.uint32),
    )
    return tuple(int(word[0]) for word in words)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_random123(key, counter, words):
    assert blocks(key, counter) == words


def test_key_must_fit_32_bits():
    with pytest.raises(ValueError, match="seed is -1"):
        random.uniform(-1, PURPOSE, np.arange(2), np.arange(2), 1)


def test_streams_differ():
    purposes = ("action", "reset", "minibatch", "exploration")
    assert len({random.stream(purpose) for purpose in purposes}) == len(purposes)
    assert random.stream("action") == 0x47CC8C92  # zlib and gzip give the same number


@pytest.mark.parametrize("size", [1, 2, 5])
def test_layout_of_uniform(size):
    """Component j of environment e is a word of block (step, e * blocks + j)."""
    noise = random.uniform(3, 4, np.array([7, 9]), np.array([0, 5]), size)
    assert noise.shape == (2, 2, size)
    assert noise.dtype == np.float32
    num_blocks = (size + 1) // 2
    for s, step in enumerate((7, 9)):
        for b, env in enumerate((0, 5)):
            pairs = [blocks((3, 4), (step, env * num_blocks + j)) for j in range(num_blocks)]
            words = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
            assert noise[s, b].tolist() == [(word >> 8) / 2**24 for word in words[:size]]


def graph_numbers(schedule, offset, env_indices):
    steps = offset + ops.arange(3, dtype=int32)
    return (
        random_graph.uniform(schedule, steps, env_indices, 1),
        random_graph.uniform(schedule, steps, env_indices, 4),
        random_graph.uniform(schedule, steps, env_indices, 3),
        random_graph.permutations(schedule, steps, env_indices, 12),
        random_graph.permutations(schedule, steps, env_indices, 1),
    )


def test_the_graph_gives_the_bits_of_numpy(run):
    offset, env_indices = 2**31 - 9, np.array([3, 0, 70000], np.int32)
    steps = offset + np.arange(3)
    schedule = np.array(random.key_schedule(SEED, PURPOSE), np.uint32)
    results = run(graph_numbers, schedule, np.array(offset, np.int32), env_indices)
    expected = [random.uniform(SEED, PURPOSE, steps, env_indices, size) for size in (1, 4, 3)]
    expected += [random.permutations(SEED, PURPOSE, steps, env_indices, t) for t in (12, 1)]
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_shares_are_columns_of_the_whole(size):
    whole = random.uniform(SEED, PURPOSE, np.arange(10), np.arange(9), size)
    share = random.uniform(SEED, PURPOSE, np.arange(6, 8), np.arange(2, 5), size)
    np.testing.assert_array_equal(share, whole[6:8, 2:5])
    orders = random.permutations(SEED, PURPOSE, np.arange(4), np.arange(9), 7)
    share = random.permutations(SEED, PURPOSE, np.arange(1, 3), np.arange(2, 5), 7)
    np.testing.assert_array_equal(share, orders[1:3, :, 2:5])


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


@pytest.mark.parametrize("size", [1, 4])
def test_uniform_is_uniform(size):
    noise = random.uniform(1, PURPOSE, np.arange(1000), np.arange(64), size)
    assert noise.min() >= 0
    assert noise.max() < 1
    # 0.999 quantiles of chi-square: 99 and 255 degrees of freedom.
    assert chi_square(np.histogram(noise, 100, (0, 1))[0]) < 148.2
    for before, after in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        pairs = np.histogram2d(before.ravel(), after.ravel(), 16, ((0, 1), (0, 1)))[0]
        assert chi_square(pairs) < 330.5


@pytest.mark.parametrize("num_steps", [1, 2, 5, 128])
def test_permutations_hold_every_step_once(num_steps):
    orders = random.permutations(SEED, PURPOSE, np.arange(6), np.arange(4), num_steps)
    assert orders.shape == (6, num_steps, 4)
    assert orders.dtype == np.int32
    expected = np.broadcast_to(np.arange(num_steps)[None, :, None], orders.shape)
    np.testing.assert_array_equal(np.sort(orders, axis=1), expected)


def test_all_permutations_are_equally_likely():
    orders = random.permutations(SEED, PURPOSE, np.arange(500), np.arange(24), 4)
    code = np.einsum("etb,t->eb", orders, [64, 16, 4, 1])
    counts = np.unique(code, return_counts=True)[1]
    assert counts.size == 24
    assert chi_square(counts) < 49.7  # the 0.999 quantile for 23 degrees of freedom


def test_numpy_part_never_imports_mindspore():
    program = "import sys, mindspore_rl.rl.random; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_whole_numbers_below_a_count_are_alike_however_large_it_is():
    numbers = random.uniform(5, PURPOSE, np.arange(200), np.arange(1), 200)
    found = random.below(numbers, 2**62)
    assert found.shape == (200, 1, 100)
    for bit in range(14, 62):  # the 48 bits
        assert 9_600 < (found >> bit & 1).sum() < 10_400
    last = np.full(2, np.nextafter(np.float32(1), np.float32(0)))
    for count in (1, 2, 3, 10**6, 2**31 - 1, 2**47 + 1):
        assert random.below(last, count) == count - 1
        assert random.below(np.zeros(2, np.float32), count) == 0
    assert 0 < random.below(last, 2**63 - 1) < 2**63 - 1
