"""Random numbers as a pure function of (seed, purpose, step, environment, component).

There is no generator state to share, copy or order, so sharding environments over ranks changes no
number: the shard ``env_indices = 2..4`` has the columns 2..4 of the full array. The block function
is Threefry2x32-20 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), which JAX
uses too. It needs only 32-bit additions, rotations and exclusive ors, hence the same bits from
NumPy (this module, which must never import MindSpore) and in a compiled graph (``random_graph``).

Layout, the same in both modules: key = (seed, stream), counter = (step, env_index * blocks + j).
A block has two words, so an environment that needs ``size`` numbers per step uses ``blocks =
ceil(size / 2)`` blocks; its words are the first words of these blocks, then their second words,
truncated to ``size``.
"""

import zlib
from dataclasses import dataclass

import numpy as np

WORD = 2**32
UNIT = 2.0**-24  # a float32 holds 24 bits exactly
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@dataclass(frozen=True)
class Agents:
    """Some of the agents of every environment.

    Args:
        share: indices of the agents.
        count: agents of an environment.
    """

    share: range
    count: int

    def lanes(self, env_indices: np.ndarray) -> np.ndarray:
        """Returns ``[B * A]`` integers, the global index of each agent of some environments."""
        envs = np.asarray(env_indices).reshape(-1, 1)
        return (envs * self.count + np.array(self.share)).reshape(-1)


def all_agents(count: int) -> Agents:
    """Returns every agent of an environment of ``count``."""
    return Agents(range(count), count)


def stream(purpose: str) -> int:
    """Returns the number of a purpose, such as "action": its CRC-32, the same on every machine."""
    return zlib.crc32(purpose.encode())


def key_schedule(seed: int, purpose_stream: int) -> tuple:
    """Returns the pairs of words that Threefry adds to its state initially and every four rounds.

    Args:
        seed: the job's seed, 0 <= seed < 2**32.
        purpose_stream: from ``stream``, in the same range.

    Returns:
        Six pairs of ints, the round counter already added to the second of each.

    Raises:
        ValueError: if a number does not fit 32 bits.
    """
    for name, number in (("seed", seed), ("purpose_stream", purpose_stream)):
        if not 0 <= number < WORD:
            raise ValueError(
                f"{name} is {number}, but must be at least 0 and below 2**32: take it modulo 2**32."
            )
    words = (seed, purpose_stream, seed ^ purpose_stream ^ _PARITY)
    return tuple((words[i % 3], (words[(i + 1) % 3] + i) % WORD) for i in range(6))


def threefry_2x32(schedule: tuple, counter0: np.ndarray, counter1: np.ndarray) -> tuple:
    """Hashs counters to words with Threefry2x32-20.

    Args:
        schedule: from ``key_schedule``.
        counter0: uint32 array, any shape that broadcasts against counter1.
        counter1: uint32 array.

    Returns:
        (words0, words1): two uint32 arrays of the broadcast shape.
    """
    keys = np.array(schedule, np.uint32)
    x0, x1 = np.broadcast_arrays(counter0 + keys[0, 0], counter1 + keys[0, 1])
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (np.left_shift(x1, bits) | np.right_shift(x1, 32 - bits)) ^ x0
        x0, x1 = x0 + keys[group + 1, 0], x1 + keys[group + 1, 1]
    return x0, x1


def _words(
    seed: int, purpose_stream: int, steps: np.ndarray, env_indices: np.ndarray, size: int
) -> np.ndarray:
    """Returns [S, B, size] uint32 in the module's layout."""
    blocks = (size + 1) // 2
    counter0 = np.asarray(steps).astype(np.uint32).reshape(-1, 1)
    lanes = np.asarray(env_indices).astype(np.uint32).reshape(-1, 1) * np.uint32(blocks)
    counter1 = (lanes + np.arange(blocks, dtype=np.uint32)).reshape(1, -1)
    schedule = key_schedule(seed, purpose_stream)
    pair = threefry_2x32(schedule, counter0, counter1)
    shape = (len(counter0), len(lanes), blocks)
    return np.concatenate([words.reshape(shape) for words in pair], axis=-1)[..., :size]


def uniform(
    seed: int,
    purpose_stream: int,
    steps: np.ndarray,
    env_indices: np.ndarray,
    size: int,
    agents: Agents | None = None,
) -> np.ndarray:
    """Returns uniform numbers: the top 24 bits of each word, times 2^-24.

    Args:
        seed: the job's seed, 0 <= seed < 2**32.
        purpose_stream: from ``stream``.
        steps: [S] integers, global step counters (below 2**32).
        env_indices: [B] integers, global environment indices.
        size: numbers per environment and step; with agents, per agent.
        agents: agents to draw for; agent a of A in environment b gets the numbers of environment
            ``b A + a``.

    Returns:
        noise: [S, B, size] float32 in [0, 1); with agents [S, B, A, size].
    """
    lanes = env_indices if agents is None else agents.lanes(env_indices)
    words = _words(seed, purpose_stream, steps, lanes, size)
    noise = (words >> 8).astype(np.float32) * np.float32(UNIT)
    shape = () if agents is None else (len(agents.share),)
    return noise.reshape(len(steps), len(env_indices), *shape, size)


def below(numbers: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """Returns random integers below a count from 48 bits each; one float32 has only 24.

    Args:
        numbers: [..., 2 k] float32 from ``uniform``; the last k are the low bits of the first k.
        count: up to 2^63, or an array that broadcasts against [..., k].

    Returns:
        places: [..., k] int64, at least 0 and below the count.
    """
    fine, each = numbers.astype(np.float64), numbers.shape[-1] // 2
    return ((fine[..., :each] + fine[..., each:] * UNIT) * count).astype(np.int64)


def permutations(
    seed: int, purpose_stream: int, rounds: np.ndarray, env_indices: np.ndarray, num_steps: int
) -> np.ndarray:
    """Returns a permutation of 0..T-1 for every round and environment, by sorting random keys.

    A key has 31 bits, of which the low ones are the time index: keys never tie, so every sorting
    algorithm gives the same order. The other bits are random, 20 for T = 2048; with these, about
    two pairs per permutation have equal random bits and keep their order.

    Args:
        seed: the job's seed, 0 <= seed < 2**32.
        purpose_stream: from ``stream``.
        rounds: [E] integers, global counters of the shuffles (such as iteration * update_epochs +
            epoch).
        env_indices: [B] integers, global environment indices.
        num_steps: T.

    Returns:
        order: [E, T, B] int32; order[e, :, b] is a permutation of 0..T-1.
    """
    mask = 2 ** (num_steps - 1).bit_length() - 1
    keys = (_words(seed, purpose_stream, rounds, env_indices, num_steps) >> 1).astype(np.int32)
    keys = (keys & ~mask) | np.arange(num_steps, dtype=np.int32)
    return (np.sort(keys, axis=-1) & mask).transpose(0, 2, 1)
