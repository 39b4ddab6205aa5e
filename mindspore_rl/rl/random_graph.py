"""The random numbers of ``random``, bit for bit, as MindSpore operators."""

import numpy as np
from mindspore import Tensor, float32, int32, ops, uint32
from mindspore.ops.primitive import constexpr

from mindspore_rl.rl.random import ROTATIONS, UNIT, key_schedule


# Python integers are computed at compile time: compiled graphs have neither ^ nor bit_length.
@constexpr
def _rotations() -> Tensor:
    """Returns [5, 8, 1, 1] uint32: for each group four left rotations, then the right ones.

    Shifts on the GPU need operands of the same rank.
    """
    left = np.array([ROTATIONS[group % 2] for group in range(5)], np.uint32)
    return Tensor(np.concatenate([left, 32 - left], 1)[..., None, None])


@constexpr
def _index_range(size: int, dtype: str) -> Tensor:
    return Tensor(np.arange(size, dtype=dtype))


@constexpr
def _index_mask(size: int) -> int:
    return 2 ** (size - 1).bit_length() - 1


def _word(number: int) -> Tensor:
    return Tensor(number, uint32)


def _without_lowest(words: Tensor, bits: int) -> Tensor:
    """Returns words [S, B, size] uint32, shifted to the right by a number of bits."""
    return ops.bitwise_right_shift(words, ops.reshape(_word(bits), (1, 1, 1)))


def _threefry_2x32(schedule: Tensor, counter0: Tensor, counter1: Tensor) -> tuple:
    """Hashes counters as ``random`` does; in a loop, as each compiled operator takes 80 kB."""
    rotations = _rotations()
    group = Tensor(0, int32)
    keys = ops.unstack(ops.gather(schedule, group, 0))
    words0 = counter0 + keys[0] + ops.zeros_like(counter1)
    words1 = counter1 + keys[1] + ops.zeros_like(counter0)
    while group < 5:
        bits = ops.unstack(ops.gather(rotations, group, 0))
        for turn in range(4):
            words0 = words0 + words1
            words1 = ops.bitwise_or(
                ops.bitwise_left_shift(words1, bits[turn]),
                ops.bitwise_right_shift(words1, bits[turn + 4]),
            )
            words1 = ops.bitwise_xor(words1, words0)
        group = group + 1
        keys = ops.unstack(ops.gather(schedule, group, 0))
        words0 = words0 + keys[0]
        words1 = words1 + keys[1]
    return words0, words1


def _words(schedule: Tensor, steps: Tensor, env_indices: Tensor, size: int) -> Tensor:
    """Returns [S, B, size] uint32 in the layout of ``random``."""
    blocks = (size + 1) // 2
    counter0 = ops.reshape(ops.cast(steps, uint32), (-1, 1))
    lanes = ops.reshape(ops.cast(env_indices, uint32), (-1, 1)) * _word(blocks)
    counter1 = ops.reshape(lanes + _index_range(blocks, "uint32"), (1, -1))
    words0, words1 = _threefry_2x32(schedule, counter0, counter1)
    shape = (counter0.shape[0], lanes.shape[0], blocks)
    words0 = ops.reshape(words0, shape)
    if size == 1:
        return words0
    words = ops.concat((words0, ops.reshape(words1, shape)), 2)
    return words if size % 2 == 0 else words[:, :, :size]


def schedule(seed: int, purpose_stream: int) -> Tensor:
    """Returns the result of ``random.key_schedule`` as a [6, 2] uint32 tensor."""
    return Tensor(np.array(key_schedule(seed, purpose_stream), np.uint32))


def uniform(schedule: Tensor, steps: Tensor, env_indices: Tensor, size: int) -> Tensor:
    """Returns uniform numbers: the top 24 bits of each word, times 2^-24.

    Args:
        schedule: [6, 2] uint32, from ``schedule``.
        steps: [S] int32 or uint32, global step counters.
        env_indices: [B] int32 or uint32, global environment indices.
        size: numbers per environment and step; static.

    Returns:
        noise: [S, B, size] float32 in [0, 1).
    """
    words = _words(schedule, steps, env_indices, size)
    return ops.cast(_without_lowest(words, 8), float32) * UNIT


def permutations(schedule: Tensor, rounds: Tensor, env_indices: Tensor, num_steps: int) -> Tensor:
    """Returns a permutation of 0..T-1 for every round and environment, see ``random``.

    Args:
        schedule: [6, 2] uint32, from ``schedule``.
        rounds: [E] int32 or uint32, global counters of the shuffles.
        env_indices: [B] int32 or uint32, global environment indices.
        num_steps: T; static.

    Returns:
        order: [E, T, B] int32; order[e, :, b] is a permutation of 0..T-1.
    """
    mask = _index_mask(num_steps)
    words = _words(schedule, rounds, env_indices, num_steps)
    keys = ops.cast(_without_lowest(words, 1), int32)
    keys = ops.bitwise_and(keys, -1 - mask) + _index_range(num_steps, "int32")
    return ops.transpose(ops.bitwise_and(ops.sort(keys)[0], mask), (0, 2, 1))
