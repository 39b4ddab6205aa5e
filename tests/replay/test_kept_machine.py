"""A kept replay against plain arrays, whatever is called in whatever order.

The model has arrays `[capacity, B, ...]`, weights and numbers of records. Images are kept as
frames, columns in memory or in files, and draws are made by native code or by NumPy.
"""

import contextlib
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mindspore_rl.errors import CheckpointError, NumericsError, ReplayError
from mindspore_rl.replay.frames import FrameColumn
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.replay.spec import LARGEST, ONE
from mindspore_rl.rl.random import below

ENVS, STACK, SIDE = 3, 2, 16
FRAMES = np.random.default_rng(0).integers(0, 2, (6, SIDE, SIDE), np.uint8)
FRAMES[0] = 0
"""Few, so that they repeat in a record and in its neighbours; one is what none has written yet."""
LAST = np.nextafter(np.float32(1), np.float32(0))
ORDERS = [[0, 1, 2], [2, 0], [1], [0, 0, 2], [2, 2, 2, 1]]
"""The environments of messages of an asynchronous run, in the order of their arrival."""


class Kept(RuleBasedStateMachine):
    @initialize(
        capacity=st.sampled_from([1, 2, 5, 7, 16, 17, 300]),
        weighted=st.booleans(),
        images=st.booleans(),
        native=st.booleans(),
        in_files=st.booleans(),
        seed=st.integers(0, 99),
    )
    def make(self, capacity, weighted, images, native, in_files, seed):
        self.surroundings, self.folder = contextlib.ExitStack(), ""
        changed = {"replay.frames.BLOCK_BYTES": 1 << 14}  # several blocks
        if not native:
            changed["platform.toolchain.compiler"] = lambda: None
        if in_files:  # which do not fit memory, so that the system is told what is read
            self.folder = self.surroundings.enter_context(tempfile.TemporaryDirectory())
            changed["replay.kept.available_memory"] = lambda: 0
            changed["replay.frames.available_memory"] = lambda: 0
        for name, value in changed.items():
            self.surroundings.enter_context(mock.patch(f"mindspore_rl.{name}", value))
        self.capacity, self.weighted, self.images = capacity, weighted, images
        self.rng = np.random.default_rng(seed)
        self.kept = KeptReplay(ENVS, capacity, weighted, folder=self.folder)
        self.columns = [np.zeros((capacity, *x.shape[1:]), x.dtype) for x in self.stacks(1, ENVS)]
        self.weights, self.inserted = np.zeros((capacity, ENVS), np.int64), np.zeros(ENVS, int)

    def teardown(self):
        if hasattr(self, "surroundings"):
            self.surroundings.close()

    def stacks(self, rows: int, envs: int) -> list[np.ndarray]:
        """Returns random records `[rows, envs, ...]`."""
        number = self.rng.random((rows, envs), np.float32)
        chosen = [self.rng.integers(0, len(FRAMES), (rows, envs, STACK)) for _ in range(2)]
        return [number, number < 0.5, *(FRAMES[one] for one in chosen if self.images)]

    @property
    def filled(self) -> np.ndarray:
        return np.minimum(self.inserted, self.capacity)

    # ---- writing -----------------------------------------------------------------------------

    def wrote(self, lanes, stacks):
        """Writes to the model: a new record is as likely as the likeliest of its environment."""
        for at, lane in enumerate(lanes):
            largest = self.weights[:, lane].max() or ONE
            for row in range(len(stacks[0])):
                place = self.inserted[lane] % self.capacity
                self.weights[place, lane] = largest
                self.inserted[lane] += 1
                for column, stack in zip(self.columns, stacks, strict=True):
                    column[place, lane] = stack[row, at]

    @rule(rows=st.integers(1, 40), whole=st.booleans())
    def extend(self, rows, whole):
        stacks = self.stacks(self.capacity if whole else min(rows, self.capacity), ENVS)
        self.kept.extend(*stacks)
        self.wrote(range(ENVS), stacks)

    @rule(other_kinds=st.booleans())
    def write(self, other_kinds):
        """Also values of other types, or parts of arrays."""
        stacks = self.stacks(1, ENVS)
        values = [stack[0] for stack in stacks]
        if other_kinds and self.inserted.any():
            number, even, *images = values
            images = [image.astype(np.int64) for image in images]
            values = [number.astype(np.float64), np.repeat(even, 2)[::2], *images]
        self.kept.write(*values)
        self.wrote(range(ENVS), stacks)

    @rule(rows=st.integers(1, 3))
    def write_in_parts(self, rows):
        for places in (slice(0, None, 2), slice(1, None, 2)):
            lanes, part = range(ENVS)[places], self.kept.part(places)
            for _ in range(rows):
                stacks = self.stacks(1, len(lanes))
                part.write(*(x[0] for x in stacks))
                self.wrote(lanes, stacks)

    @rule(lanes=st.sampled_from(ORDERS))
    def write_as_they_come(self, lanes):
        stacks = self.stacks(1, len(lanes))
        self.kept.sources = [slice(lane, lane + 1) for lane in lanes]
        self.kept.write(*(x[0] for x in stacks))
        self.kept.sources = []
        for at, lane in enumerate(lanes):
            self.wrote([lane], [stack[:, at : at + 1] for stack in stacks])

    @precondition(lambda self: self.weighted and self.inserted.all())
    @rule(each=st.integers(1, 6), wrong=st.sampled_from([None, None, None, -1.0, np.nan, "row"]))
    def update(self, each, wrong):
        """Of several priorities for a record the last one counts; a refused one changes nothing."""
        rows = self.rng.integers(0, self.filled.min(), each * ENVS)
        priorities = self.rng.choice([0.0, 0.25, 1.0, 4.0, 9.0, 1e14], each * ENVS)
        if wrong is not None:
            errors = {-1.0: ReplayError, "row": IndexError}
            if wrong == "row":
                rows[-1] = self.capacity
            else:
                priorities[-1] = wrong
            with pytest.raises(errors.get(wrong, NumericsError)):
                self.kept.update(rows, priorities)
            return
        self.kept.update(rows, priorities)
        for place, (row, priority) in enumerate(zip(rows, priorities, strict=True)):
            self.weights[row, place % ENVS] = min(max(round(priority * ONE), 1), LARGEST)

    @precondition(lambda self: self.inserted.any())
    @rule()
    def save_and_restore(self):
        """As from a checkpoint: one column after the other, some lanes at a time."""
        saved = [*self.columns, *([self.weights] if self.weighted else [])]
        self.kept = KeptReplay(ENVS, self.capacity, self.weighted, folder=self.folder)
        columns = self.kept.allocate([(x.dtype, x.shape[2:]) for x in self.columns])
        for lanes in (slice(0, 2), slice(2, 3)):
            for column, whole in zip(columns, saved, strict=True):
                rows, places = (x.reshape(-1) for x in np.indices(whole[:, lanes].shape[:2]))
                column[:, lanes][rows, places] = whole[:, lanes][rows, places]
        self.kept.inserted = self.inserted
        given = self.stacks(1, ENVS)
        for other in ([given[0][..., None], *given[1:]], given[1:], [*given, given[0]]):
            with pytest.raises(CheckpointError, match="the program keeps records of shapes"):
                self.kept.extend(*other)

    # ---- drawing -----------------------------------------------------------------------------

    def noise(self, *shape: int) -> np.ndarray:
        """Returns numbers in [0, 1), the smallest and the largest among them."""
        found = self.rng.random(shape, np.float32)
        return np.where(self.rng.random(shape) < 0.1, self.rng.choice([0.0, LAST], shape), found)

    def same(self, found, rows, steps):
        """Compares columns with those of the model, from rows `[k, B]` on."""
        at, lanes = rows.reshape(-1), np.tile(np.arange(ENVS), len(rows))
        if steps:
            at, lanes = at[:, None] + np.arange(steps), lanes[:, None]
        for column, whole in zip(found, self.columns, strict=True):
            assert column.dtype == whole.dtype
            np.testing.assert_array_equal(column, whole[at % self.capacity, lanes])

    @precondition(lambda self: self.inserted.any())
    @rule(each=st.integers(1, 12), steps=st.integers(0, 4), turns=st.integers(1, 3))
    def draw(self, each, steps, turns):
        """Several draws at once are those one by one; windows go on over the ring's end."""
        noise = self.noise(turns, ENVS, 2 * each).astype(np.float32)
        if (self.filled < max(steps, 1)).any():
            with pytest.raises(ReplayError, match=f"than the {max(steps, 1)} of one draw"):
                self.kept.draw(noise, steps)
            return
        together, oldest = self.kept.draw(noise, steps), self.inserted - self.filled
        for turn in range(turns):
            rows = below(noise[turn], (self.filled - max(steps, 1) + 1)[:, None]).T
            rows = rows + oldest * (steps > 0)
            self.same([column[turn] for column in together], rows, steps)
            self.same(self.kept.draw(noise[turn], steps), rows, steps)
            places = np.tile(np.arange(ENVS), each)
            at = rows.reshape(-1) % self.capacity
            self.same(self.kept.records(at, places, steps), rows, steps)

    @precondition(lambda self: self.weighted and self.inserted.any())
    @rule(each=st.integers(1, 12), steps=st.integers(0, 4))
    def draw_weighted(self, each, steps):
        """Where the sums of weights reach a number; the newest records begin no window."""
        noise = self.noise(ENVS, 2 * each).astype(np.float32)
        if (self.filled < max(steps, 1)).any():
            with pytest.raises(ReplayError, match=f"than the {max(steps, 1)} of one draw"):
                self.kept.draw_weighted(noise, steps)
            return
        *found, rows, odds = self.kept.draw_weighted(noise, steps)
        rows, odds = rows.reshape(each, ENVS), odds.reshape(each, ENVS)
        for lane in range(ENVS):
            weights, newest = self.weights[:, lane].copy(), max(steps - 1, 0)
            weights[(self.inserted[lane] - 1 - np.arange(newest)) % self.capacity] = 0
            ends = np.cumsum(weights)
            expected = np.searchsorted(ends, below(noise[lane], ends[-1]), "right")
            assert rows[:, lane].tolist() == expected.tolist()
            share = weights[expected] / ends[-1] * (self.filled[lane] - newest)
            np.testing.assert_allclose(odds[:, lane], share, rtol=1e-6)
        self.same(found, rows, steps)

    @invariant()
    def all_is_that_of_the_model(self):
        if not hasattr(self, "kept") or not self.kept.columns:
            return
        assert self.kept.inserted.tolist() == self.inserted.tolist()
        expected = [*self.columns, *([self.weights] if self.weighted else [])]
        for column, whole in zip(self.kept.columns, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(column), whole)
        assert not self.folder or not os.listdir(self.folder)
        framed = [column for column in self.kept.columns if isinstance(column, FrameColumn)]
        assert len(framed) == 2 * self.images
        if framed:
            held = np.unique(np.concatenate([column.index for column in framed], -1))
            assert framed[0].store.used == len(held[held > 0])


TestKept = Kept.TestCase
TestKept.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
