"""Epochs without replacement, shared by ranks as a pure function of the seed.

Batch s has the positions s B to (s + 1) B in an endless list: the permutation of the first epoch,
then that of the second, and so on. So all batches have the same size, and one number tells how far
a learner has come. A rank takes the same positions of each batch, so that the batch does not depend
on the number of ranks.
"""

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.rl.random import WORD, key_schedule, stream, threefry_2x32

ROUNDS = 8
FEWEST_BITS = 8


class Permutation:
    """A permutation of 0..N-1, evaluated lazily with a Feistel network.

    Each round changes one half of a number's bits by a random function of the other half (Luby and
    Rackoff 1988, "How to construct pseudorandom permutations from pseudorandom functions"). This
    permutes the numbers of so many bits; a result beyond N is permuted again until it is below N
    (cycle walking; Black and Rogaway 2002, "Ciphers with arbitrary finite domains"), less than once
    on average for large N.

    Args:
        seed: 0 <= seed < 2**32.
        epoch: 0 <= epoch < 2**32.
        count: N, at most 2**40.
        purpose: distinguishes it from other permutations of the job.
    """

    def __init__(self, seed: int, epoch: int, count: int, purpose: str = "epoch") -> None:
        self._count = count
        # Random functions of very few bits would give too few permutations.
        bits = max(FEWEST_BITS, (count - 1).bit_length())
        self._low_bits = bits // 2
        widths = (self._low_bits, bits - self._low_bits)
        # Each row holds a round's function; the round is in the four highest bits of the hashed
        # words.
        rounds = np.arange(ROUNDS, dtype=np.uint32)[:, None] << np.uint32(28)
        inputs = rounds | np.arange(1 << widths[1], dtype=np.uint32)
        schedule = key_schedule(seed, stream(purpose))
        words, _ = threefry_2x32(schedule, np.array([epoch], np.uint32), inputs)
        changed = [32 - widths[1 - number % 2] for number in range(ROUNDS)]
        self._functions = (words >> np.array(changed, np.uint32)[:, None]).astype(np.int64)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Evaluates the permutation at positions `[K] int64`, each below N."""
        found = self._once(places)
        while len(beyond := np.flatnonzero(found >= self._count)):
            found[beyond] = self._once(found[beyond])
        return found

    def _once(self, numbers: np.ndarray) -> np.ndarray:
        high, low = numbers >> self._low_bits, numbers & ((1 << self._low_bits) - 1)
        for number in range(0, ROUNDS, 2):
            high = high ^ self._functions[number][low]
            low = low ^ self._functions[number + 1][high]
        return high << self._low_bits | low


class Epochs:
    """The records or windows of a rank's part of each batch.

    Args:
        seed: of the job.
        count: number of all records or windows.
        batch_size: over all ranks.
        places: this rank's positions in a batch, `[n] int64`; None: all.
        purpose: distinguishes these epochs from others of the job.

    Raises:
        ReplayError: a number is out of range.
    """

    def __init__(
        self,
        seed: int,
        count: int,
        batch_size: int,
        places: np.ndarray | None = None,
        purpose: str = "epoch",
    ) -> None:
        if batch_size < 1:
            raise ReplayError(f"a batch of {batch_size}, expected at least 1")
        if not 0 <= seed < WORD:
            raise ReplayError(f"seed is {seed}, expected 0 to {WORD - 1}")
        self.places = np.arange(batch_size) if places is None else places
        self._seed, self._count, self._batch_size = seed, count, batch_size
        self._purpose = purpose
        self._permutations: dict[int, Permutation] = {}

    def part(self, step: int) -> np.ndarray:
        """Returns this rank's part of a batch, `[n] int64`."""
        epochs, places = np.divmod(step * self._batch_size + self.places, self._count)
        found, used = np.empty_like(places), {}
        for epoch in np.unique(epochs).tolist():
            permutation = self._permutations.get(epoch)
            if permutation is None:
                permutation = Permutation(self._seed, epoch, self._count, self._purpose)
            here = epochs == epoch
            used[epoch], found[here] = permutation, permutation(places[here])
        self._permutations = used
        return found
