"""Data sets from other systems' files: every number is imported, and errors are reported."""

import io
import json
import re
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from mindspore_rl.cli.main import main
from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.environments.spaces import Discrete
from tests.datasets.files import episode, flat, grouped

MINARI = Path(__file__).with_name("minari_cartpole.tar.gz")
LENGTHS = [3, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2]


def save_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def save(path, arrays, compressed=False):
    if path.suffix == ".hdf5":
        save_hdf5(path, arrays)
    else:
        (np.savez_compressed if compressed else np.savez)(path, **arrays)


def imported(source, *flags):
    path = source.parent / "set"
    assert main(["dataset", "import", str(source), str(path), *flags]) == 0
    return Dataset(path)


def assert_episodes(dataset, lengths):
    for number, (found, steps) in enumerate(zip(dataset.records(), lengths, strict=True)):
        expected = episode(number, steps)
        for name, array in expected.columns().items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
@pytest.mark.parametrize("layout", ["terminals", "terminations", "grouped"])
def test_every_step_is_imported(tmp_path, suffix, layout, compressed):
    ends = ("terminals", "timeouts") if layout == "terminals" else ("terminations", "truncations")
    arrays = grouped(LENGTHS) if layout == "grouped" else flat(LENGTHS, ends)
    arrays = {
        name: x.astype(np.float64 if x.dtype == np.float32 else np.int64) if "ns" in name else x
        for name, x in arrays.items()
    }
    save(tmp_path / f"file{suffix}", arrays, compressed)
    with imported(tmp_path / f"file{suffix}") as dataset:
        assert_episodes(dataset, LENGTHS)
        assert (dataset.about.environment, dataset.about.action_space) == ("", None)


def test_real_numbers_are_actions_of_a_box(tmp_path):
    arrays = flat([4, 4])
    arrays["actions"] = np.arange(16, dtype=np.float64).reshape(8, 2, 1)
    arrays["rewards"] = arrays["rewards"].reshape(-1, 1)
    save(tmp_path / "file.npz", arrays)
    with imported(tmp_path / "file.npz") as dataset:
        first, second = (one["action"].copy() for one in dataset.records())
        assert first.dtype == np.float32
        np.testing.assert_array_equal(np.concatenate([first, second]), np.arange(16).reshape(8, 2))


@pytest.mark.parametrize("missing", ["terminals", "timeouts"])
def test_an_end_that_nobody_marked_is_a_truncation(tmp_path, capsys, missing):
    lengths = [3, 5] if missing == "timeouts" else [3]
    arrays = flat(lengths if missing == "timeouts" else [*lengths, 4])
    if missing == "terminals":
        arrays["timeouts"] = np.array([False, False, True, False, False, False, False])
    del arrays[missing]
    save(tmp_path / "file.npz", arrays)
    with imported(tmp_path / "file.npz") as dataset:
        last = list(dataset.records())[-1]
        assert last["truncated"].tolist() == [False] * (len(last["step"]) - 1) + [True]
        assert not last["terminated"].any()
    assert "nothing says how the last episode ended" in capsys.readouterr().err


def test_a_folder_that_minari_wrote(tmp_path, capsys, refused):
    """From its DataCollector (0.5.4): CartPole-v1 from the seeds 0 to 4, and one step from 9."""
    with tarfile.open(MINARI) as archive:
        archive.extractall(tmp_path, filter="data")
    with imported(tmp_path / "test-v0") as dataset:
        assert dataset.about.environment == "CartPole-v1"
        assert dataset.about.action_space == Discrete(2)
        with h5py.File(tmp_path / "test-v0" / "data" / "main_data.hdf5") as file:
            for number, found in enumerate(dataset.records()):
                group = file[f"episode_{number}"]
                np.testing.assert_array_equal(found["obs"], group["observations"][:-1])
                np.testing.assert_array_equal(found["action"], group["actions"][:])
                assert found["return_to_go"][0] == group.attrs["rewards_sum"]
                assert found["terminated"][-1] == (number < 5)
                assert found["truncated"][-1] == (number == 5)
            assert number == 5
    assert main(["dataset", "show", str(tmp_path / "set")]) == 0
    printed = capsys.readouterr().out
    assert "6 episodes of 110 steps, in 6 records of at most 55 steps" in printed
    assert "obs           float32  (4,)" in printed
    assert "name the --env that it is of" in refused(
        "dataset", "import", tmp_path / "test-v0", tmp_path / "x", "--env", "Pendulum-v1"
    )
    assert not (tmp_path / "x").exists()
    metadata = tmp_path / "test-v0" / "data" / "metadata.json"
    about = json.loads(metadata.read_text())
    space = {"type": "Box", "shape": [2], "low": [-1, -1], "high": [1, 1]}
    metadata.write_text(json.dumps({**about, "action_space": json.dumps(space)}))
    assert re.search(
        r"metadata says that actions are Box.*they are int64 \(",
        refused("dataset", "import", tmp_path / "test-v0", tmp_path / "x"),
    )


def test_what_is_cut_is_told(tmp_path, capsys, refused):
    save(tmp_path / "file.npz", flat([3, 4, 5]))
    with imported(tmp_path / "file.npz", "--length", "3") as dataset:
        assert dataset.lengths.tolist() == [3, 3, 1, 3, 2]
    out, error = capsys.readouterr()
    assert "2 episodes are longer than a record's 3 steps, and were cut" in error
    assert "3 episodes, 12 steps" in out
    assert "--length: 1, expected at least 2" in refused(
        "dataset", "import", "file.npz", "set", "--length", "1"
    )


def without(name, arrays=None):
    arrays = arrays or flat([3, 4])
    return {key: x for key, x in arrays.items() if key != name}


def nan(name):
    arrays = flat([3, 4])
    arrays[name][5] = np.nan
    return arrays


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (without("actions"), "there is no actions; there are"),
        (without("terminals", without("timeouts")), "there is none of terminals"),
        (without("episode_1/rewards", grouped([3, 4])), "there is no episode_1/rewards"),
        ({**flat([3, 4]), "rewards": np.ones(6)}, r"for 6 steps, as many as there are rewards"),
        ({**flat([3]), "rewards": np.ones((3, 2))}, r"an array is \(3, 2\), expected one number"),
        (nan("observations"), r"episode 1: obs\[2, 0\] is nan, expected finite numbers"),
        ({**flat([3]), "rewards": np.full(3, 1e300)}, r"episode 0: reward\[0\] is inf"),
        ({**flat([2]), "rewards": np.array(["a", "b"])}, r"is <U1 \(2,\), expected numbers"),
        (flat([0]), "it has no steps"),
        ({**flat([3]), "rewards": np.float32(1)}, "rewards is a single number"),
        ({**grouped([3]), "episode_0/rewards": np.float32(1)}, "0/rewards is a single number"),
        ({**flat([2]), "actions": np.array([0, 1 << 32])}, "its actions are 0 to 4294967296"),
        ({**grouped([3]), "episode_0/terminations": [True] * 3}, "it ends at step 0 of 3"),
        (
            {**grouped([2, 2]), "episode_1/observations": np.ones((2, 3))},
            r"column obs is float32 \(2, 3\), expected float32 \(2, 2\)",
        ),
        ({**flat([2]), "actions": np.ones((2, 2), int)}, "expected one number a step"),
        (
            {**grouped([2, 2]), "episode_1/actions": np.ones(2)},
            "episode 1 cannot be read as episodes: its actions are float64",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_bad_arrays_are_told(tmp_path, refused, suffix, arrays, message):
    if "U1" in message and suffix == ".hdf5":
        arrays, message = {**arrays, "rewards": ["a", "b"]}, r"is object \(2,\), expected numbers"
    source = tmp_path / f"file{suffix}"
    save(source, arrays)
    no_data_set(source, refused, message)


def no_data_set(source, refused, message):
    """Checks that a file is refused with a message, and that nothing remains."""
    path = source.parent / "set"
    error = refused("dataset", "import", source, path)
    assert re.search(message, error), error
    assert error.count(str(source)) >= 1 or "column obs" in error
    assert list(source.parent.iterdir()) == ([source] if source.exists() else [])


def objects(path):
    rows = np.empty(2, object)
    rows[:] = [np.ones(2), np.ones(3)]
    np.savez(path, **{**flat([2]), "rewards": rows})


def fortran(path):
    arrays = flat([3])
    save(path, {**arrays, "observations": np.asfortranarray(arrays["observations"])})


def flipped(path):
    """Flips a bit of the stored observations, which a checksum of the archive covers."""
    save(path, flat([40]))
    data = bytearray(path.read_bytes())
    data[data.index(np.float32([0, 7]).tobytes())] ^= 1
    path.write_bytes(data)


def halved(path):
    save(path, flat([4000]))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def short(path):
    """An array that is shorter than its header says."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in flat([9]).items():
            file = io.BytesIO()
            np.save(file, array)
            archive.writestr(f"{name}.npy", file.getvalue()[: -4 if name == "rewards" else None])


def of_spaces(path):
    arrays = without("observations", flat([3]))
    save(path, {**arrays, "observations/position": np.ones(3), "observations/goal": np.ones(3)})


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("file.npz", objects, "rewards holds Python objects.*episode_0/observations"),
        ("file.npz", fortran, "observations is in Fortran's order"),
        ("file.npz", flipped, "Bad CRC-32"),
        ("file.npz", halved, "not a zip file"),
        ("file.npz", short, "an array ends early"),
        ("file.npz", lambda path: path.write_bytes(b""), "not a zip file"),
        ("file.hdf5", halved, "OSError"),
        ("file.hdf5", of_spaces, "observations is a group of goal, position, expected one array"),
        ("file.csv", lambda path: path.write_text("1,2"), "expected a .npz or .hdf5 file"),
        ("missing.npz", lambda path: None, "No such file"),
        ("folder", Path.mkdir, "it has no data/main_data.hdf5; expected a folder of Minari's"),
    ],
)
def test_damaged_files_are_told(tmp_path, refused, name, spoil, message):
    spoil(tmp_path / name)
    no_data_set(tmp_path / name, refused, message)


def test_actions_of_another_space_are_told(tmp_path, refused):
    source = tmp_path / "file.npz"
    arrays = flat([3, 4])
    save(source, {**arrays, "observations": np.ones((7, 4))})
    assert "episode 0: actions are 0 to 2, expected 0 to 1" in refused(
        "dataset", "import", source, tmp_path / "set", "--env", "CartPole-v1"
    )
    assert list(tmp_path.iterdir()) == [source]


def test_actions_beyond_their_bounds_are_clipped_and_told(tmp_path, capsys):
    """An environment would clip them, as it does those of a policy."""
    source = tmp_path / "file.npz"
    arrays = flat([3, 4])
    actions = np.array([[2.0], [-2.1], [0.5], [-2.0], [1.0], [4.9], [4.8]])
    save(source, {**arrays, "observations": np.ones((7, 3)), "actions": actions})
    with imported(source, "--env", "Pendulum-v1") as dataset:
        found = np.concatenate([one["action"].copy() for one in dataset.records()])
    np.testing.assert_array_equal(found, np.clip(actions, -2, 2).astype(np.float32))
    told = capsys.readouterr().err
    assert "file.npz: 3 of 7 actions are outside the bounds" in told
    assert "at worst 4.9 for -2 to 2, in episode 1" in told


def test_actions_within_their_bounds_are_kept(tmp_path, capsys):
    source = tmp_path / "file.npz"
    actions = np.array([[2.0], [-2.0], [0.5]])
    save(source, {**flat([3]), "observations": np.ones((3, 3)), "actions": actions})
    with imported(source, "--env", "Pendulum-v1") as dataset:
        np.testing.assert_array_equal(next(dataset.records())["action"], actions)
    assert "outside" not in capsys.readouterr().err


def test_there_is_never_more_than_an_episode_in_memory(tmp_path):
    """100 episodes, 64 MB in all."""
    steps = 10_000
    arrays = {
        "observations": np.zeros((100 * steps, 16), np.float32),
        "actions": np.zeros(100 * steps, np.int32),
        "rewards": np.zeros(100 * steps, np.float32),
        "terminals": np.arange(1, 100 * steps + 1) % steps == 0,
    }
    save(tmp_path / "file.npz", arrays)
    arrays.clear()
    tracemalloc.start()
    with imported(tmp_path / "file.npz") as dataset:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert dataset.about.steps == 100 * steps
    assert peak < 8e6
