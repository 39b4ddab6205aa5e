"""The file of a data set: its contents are complete and correct, or it does not exist."""

import contextlib
import gc
import json
import os
import stat
import zlib
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl.datasets.build import Part, write
from mindspore_rl.datasets.dataset import _END, About, Dataset, Source, finish
from mindspore_rl.datasets.episodes import Episode, Recorder, of_environment
from mindspore_rl.datasets.windows import Batches
from mindspore_rl.environments.environment import GRAPH_SPECS
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, sample
from mindspore_rl.replay.spec import ENTRY, HEADER, LANE, PAGE, TableSpec
from tests.datasets.files import ABOUT, COLUMNS, episode, made


def descriptors(path):
    """Returns this process's descriptors of a file, or of a deleted one."""
    gc.collect()
    found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [one for one in found if one.is_symlink() and str(one.readlink()).startswith(str(path))]


def test_long_episodes_are_cut_into_consecutive_records(tmp_path):
    with made(tmp_path / "set", [3, 7, 1], length=3) as dataset:
        records = [{name: x.copy() for name, x in one.items()} for one in dataset.records()]
        assert [len(one["step"]) for one in records] == [3, 3, 3, 1, 1]
        assert dataset.lengths.tolist() == [3, 3, 3, 1, 1]
        whole = {name: np.concatenate([one[name] for one in records]) for name in records[0]}
        assert whole["step"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 0]
        expected = [episode(number, steps) for number, steps in enumerate([3, 7, 1])]
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            array = np.concatenate([getattr(one, name) for one in expected])
            np.testing.assert_array_equal(whole[name], array)
            assert whole[name].dtype == array.dtype
        # 0 + 1/4 + 2/4; seven times 1 and 0 to 6 quarters; 2: the first steps of each episode,
        # and the fourth of the second: four times 1 and 3 + 4 + 5 + 6 quarters.
        assert whole["return_to_go"][[0, 3, 6, 10]].tolist() == [0.75, 12.25, 8.5, 2.0]
        assert dataset.returns().tolist() == [0.75, 12.25, 2.0]
        assert dataset.about.sources == (Source("made", 3, 11, 5.0, 0.75, 12.25),)


def test_the_return_of_several_agents_is_their_mean(tmp_path):
    spec = GRAPH_SPECS["graph:simple_tag_v3"]
    obs = np.ones((2, *spec.obs_shape), np.float32)
    reward = np.array([[1, 2, 3, 6], [1, 0, 0, 0]], np.float32)
    over = np.array([False, True])
    one = Episode(obs, np.zeros((2, 4), np.int32), reward, over, ~over & over)
    write(tmp_path / "set", of_environment(spec), About(spec.name), [Part("", [2], [one])])
    with Dataset(tmp_path / "set") as dataset:
        (found,) = dataset.records()
        assert found["return_to_go"].tolist() == [3.25, 0.25]
        np.testing.assert_array_equal(found["reward"], reward)


def test_what_is_known_of_a_data_set_is_kept(tmp_path):
    box = Box((2, 1), (-1.0, -np.inf), (np.inf, 0.1))
    assert (0.5 * (2.0 - box.low)).tolist() == [1.5, np.inf]  # the bounds compute like arrays
    for space in (None, Discrete(5), box):
        about = About("some", space, (Source("a", 1, 2, 3.0, 4.0, 5.0),))
        assert About.parse(about.to_text()) == about


def test_more_is_added(tmp_path):
    path = tmp_path / "set"
    made(path, [4, 2], append=True, name="first").table.close()
    before = path.read_bytes()
    with made(path, [9], append=True, name="second") as dataset:
        assert dataset.lengths.tolist() == [4, 2, 4, 4, 1]
        assert [source.name for source in dataset.about.sources] == ["first", "second"]
        assert (dataset.about.episodes, dataset.about.steps) == (3, 15)
        assert dataset.returns().tolist() == [1.5, 2.25, 9.0]
    del dataset
    whole = path.read_bytes()
    assert whole != before
    for change, message in (
        ({"length": 5}, "has the length 4, and what is added has 5"),
        ({"about": About("Pendulum-v1")}, "has the environment CartPole-v1, and"),
        ({"columns": COLUMNS[:-1]}, "has the columns"),
        ({"append": False}, "is there; add to it with --append"),
    ):
        given = {"path": path, "columns": COLUMNS, "about": ABOUT, "append": True} | change
        with pytest.raises(ReplayError, match=message):
            write(parts=[Part("", [3], [episode(0, 3)])], **given)
    assert path.read_bytes() == whole
    assert not descriptors(path)


def test_nothing_is_left_of_what_failed(tmp_path):
    def broken():
        yield episode(0, 3)
        assert len(list(tmp_path.iterdir())) == 1  # under another name
        assert not path.exists()
        raise ZeroDivisionError

    path = tmp_path / "set"
    with pytest.raises(ZeroDivisionError):
        write(path, COLUMNS, ABOUT, [Part("", [3, 3], broken())])
    with pytest.raises(ReplayError, match="does not fit"):
        write(path, COLUMNS, ABOUT, [Part("", [1 << 50], [])], length=1 << 50)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ReplayError, match="there is no folder"):
        made(tmp_path / "missing" / "set", [3])


def test_who_may_only_read_it_opens_it_and_changes_nothing(tmp_path):
    path = tmp_path / "set"
    made(path, [4] * 20).table.close()
    path.chmod(stat.S_IRUSR)
    before = path.read_bytes()
    with Dataset(path) as dataset, Dataset(path) as other:
        drawn = sample(dataset.table, Key(1, 2), 50)
        assert dataset.table.entries["sampled"].sum() == 50
        assert not other.table.entries["sampled"].any()
        out = dataset.table.buffers(50)
        assert dataset.table.gather(drawn.ids, out).all()
        np.testing.assert_array_equal(out["obs"][:, 0, 0], drawn.ids - dataset.ids[0])
    assert path.read_bytes() == before


def test_a_data_set_may_be_larger_than_memory(tmp_path):
    """Four times as large, and only its index is stored on the disk."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    spec = TableSpec(COLUMNS, capacity=2, length=4 * memory // 26)
    header = spec.header()
    with (tmp_path / "set").open("wb") as file:
        file.write(header.tobytes() + spec.text())
        file.truncate(int(header["total_bytes"]))
    entries = np.memmap(tmp_path / "set", ENTRY, "r+", int(header["entry_offset"]), (2,))
    entries["generation"], entries["length"] = 2, 5
    entries.flush()
    descriptor = os.open(tmp_path / "set", os.O_RDWR)
    finish(descriptor, ABOUT)
    os.close(descriptor)
    with Dataset(tmp_path / "set") as dataset:
        out = dataset.table.buffers(2, window=3)
        assert dataset.table.gather(dataset.ids, out, np.array([0, 2], np.int32)).all()
        assert not out["obs"].any()


def test_what_is_no_data_set_is_told(tmp_path):
    path = tmp_path / "set"
    with pytest.raises(ReplayError, match="cannot be opened: No such file"):
        Dataset(path)
    with made(path, [4] * 20) as dataset:
        dataset.table.save(tmp_path / "table")
    del dataset
    whole = path.read_bytes()
    for content in (
        b"",
        b"something else" * 999,
        whole[:-1],
        whole[1:],
        whole + b"0",
        whole[: len(whole) // 2],
        (tmp_path / "table").read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(ReplayError, match="is not a data set, or damaged"):
            Dataset(path)
    about = range(whole.index(b'{"environment'), len(whole))
    places = [*range(600), *range(4096, 4096 + 600), *about]
    for place in np.random.default_rng(1).choice(places, 200):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        path.write_bytes(damaged)
        with pytest.raises(ReplayError, match="is not a data set, or damaged"):
            Dataset(path)
    assert not descriptors(path)


def forged(whole, descriptor=None, **values):
    """Returns a data set's bytes with a changed description and a valid checksum.

    Args:
        whole: the bytes of a valid data set.
        descriptor: replaces parts of the table's specification.
        values: values by header offset, `[lanes or records]`.
    """
    found, text_end = bytearray(whole), len(whole) - _END.size
    index_bytes, length, _, magic = _END.unpack(whole[text_end:])
    header = np.frombuffer(found, HEADER, 1)[0]
    if descriptor is not None:
        spec = json.loads(whole[HEADER.itemsize :][: header["spec_bytes"]]) | descriptor
        text = json.dumps(spec).encode()
        room = bytes(PAGE - HEADER.itemsize - len(text))
        found[HEADER.itemsize : PAGE] = text + room
        header = np.frombuffer(found, HEADER, 1)
        header["spec_bytes"] = len(text)
        with contextlib.suppress(ValueError, ReplayError):
            header[:] = TableSpec.parse(text).header()
    for place, change in values.items():
        dtype = {"entry": ENTRY, "lane": LANE, "weight": np.dtype("u8")}[place]
        at = int(header[f"{place}_offset"])
        change(np.frombuffer(found, dtype, 20 if place != "lane" else 1, at))
    checksum = zlib.crc32(whole[text_end - length : text_end], zlib.crc32(found[:index_bytes]))
    found[text_end:] = _END.pack(index_bytes, length, checksum, magic)
    return bytes(found)


def read_all(path):
    """Opens a file, if it is valid, and reads everything in it."""
    try:
        dataset = Dataset(path)
    except ReplayError as error:
        assert "is not a data set, or damaged" in str(error)
        return False
    with dataset, np.errstate(all="ignore"):
        dataset.returns()
        assert sum(len(one["obs"]) for one in dataset.records()) == dataset.lengths.sum()
        for window in (None, 2):
            batches = Batches(dataset, window, 8, 1)
            for step in range(3):
                batches.gather(step, batch := batches.buffer())
        assert batch.columns["obs"].shape[1] == 2
        sample(dataset.table, Key(1, 2), 5)
    return True


def put(name, value, rows=slice(3, 4)):
    def change(array):
        (array[name] if name else array)[rows] = value

    return change


@pytest.mark.parametrize(
    "claim",
    [
        {"entry": put("length", 5)},
        {"entry": put("length", 10**6)},
        {"entry": put("length", 2**32 - 1)},
        {"entry": put("length", 0)},
        {"entry": put("generation", 3)},
        {"entry": put("generation", 0)},
        {"weight": put("", 2**63)},
        {"weight": put("", 2)},
        {"descriptor": {"length": 10**6}},
        {"descriptor": {"length": 4.0}},
        {"descriptor": {"length": 2**62}},
        {"descriptor": {"capacity": 21}},
        {"descriptor": {"capacity": -20}},
        {"descriptor": {"capacity": 10**400}},
        {"descriptor": {"lanes": 20, "capacity": 1}},
        {"descriptor": {"weighted": True}},
        {"descriptor": {"slack": 10**400}},
        {"descriptor": {"samples_per_insert": "much"}},
        {"descriptor": {"columns": [["obs", [-2], "float32"]]}},
        {"descriptor": {"columns": {"obs": 1}}},
        {"descriptor": {"more": 1}},
    ],
)
def test_an_index_that_claims_more_than_there_is_is_refused(tmp_path, claim):
    made(path := tmp_path / "set", [4] * 20).table.close()
    assert read_all(path)
    path.write_bytes(forged(path.read_bytes(), **claim))
    assert not read_all(path)


@pytest.mark.parametrize("dtype", ["O", "V4", "S4", "f4,O", "(2,f4", "float63", "", "int32", None])
def test_columns_that_are_no_numbers_are_refused(tmp_path, dtype):
    """An object would be an address from the file."""
    made(path := tmp_path / "set", [4] * 20).table.close()
    for at in range(len(COLUMNS)):
        columns = [[c.name, list(c.shape), c.dtype] for c in COLUMNS]
        columns[at][2] = dtype
        path.write_bytes(forged(whole := path.read_bytes(), {"columns": columns}))
        assert not read_all(path) or (
            dtype == "int32" and COLUMNS[at].dtype in ("int32", "float32")
        )
        path.write_bytes(whole)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_an_index_says_it_is_read_or_refused(tmp_path, seed):
    """Bits or bytes of the index are changed; its checksum is valid."""
    random = np.random.default_rng(seed)
    made(path := tmp_path / "set", [4, 2, 3, 1] * 5).table.close()
    whole = path.read_bytes()
    places = np.flatnonzero(np.frombuffer(whole, np.uint8)[: 6 * PAGE])
    opened = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in random.choice(places, random.integers(1, 4)):
            damaged[place : place + 1] = bytes([random.choice([damaged[place] ^ 1, 0, 255])])
        path.write_bytes(forged(bytes(damaged)))
        opened += read_all(path)
    assert 0 < opened < 150


def test_the_first_episode_of_each_environment_is_recorded():
    recorder = Recorder(Box((1,), (-1.0,), (1.0,)))
    under_way = np.array([True, True])
    for step in range(3):
        obs = np.array([[step], [step + 10.0]], np.float32)
        terminated = np.array([step == 1, False])
        action = np.array([[0.5], [7.0]], np.float32)
        reward = np.ones(2, np.float32)
        recorder.watch(obs, action, reward, terminated, np.zeros(2, bool), under_way.copy())
        obs[:] = -1  # the caller may write into it
        under_way &= ~terminated
    short, cut = recorder.episodes()
    assert short.obs.tolist() == [[0], [1]]
    assert (short.terminated.tolist(), short.truncated.tolist()) == ([False, True], [False, False])
    assert cut.obs.tolist() == [[10], [11], [12]]
    assert cut.action.tolist() == [[1], [1], [1]]  # the environment takes 7 as 1
    assert cut.truncated.tolist() == [False, False, True]
