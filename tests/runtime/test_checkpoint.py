"""Checkpoints: complete or refused, never half-written, never executed."""

import ast
import io
import json
import pickle
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from mindspore_rl.errors import CheckpointError, StorageError
from mindspore_rl.plan.value import Value
from mindspore_rl.runtime import checkpoint, replay_segments, resuming
from mindspore_rl.runtime.replay_segments import Replay, Segment
from tests.commands import python

META = {"num_envs": 4, "steps_per_iteration": 64}
ARRAYS = {"parameters/w": np.arange(6, dtype=np.float32), "episodes/length": np.arange(4)}


def saved(folder: Path, iteration: int = 1) -> Path:
    return checkpoint.save(folder, iteration, ARRAYS, {**META, "env_steps": 64 * iteration})


def rewritten(path: Path, **members: bytes) -> Path:
    """Returns the archive with other contents under its members' names and valid checksums."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**contents, **members}.items():
            archive.writestr(name, content)
    return path


def array_file(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def test_what_is_loaded_is_what_was_saved(tmp_path):
    arrays, meta = checkpoint.load(saved(tmp_path, 7))
    assert meta.items() >= {**META, "iteration": 7, "env_steps": 448}.items()
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].tobytes() == array.tobytes()


def test_nothing_is_parsed_beside_a_compilation(tmp_path, monkeypatch):
    """A thread that parses makes another's parser fail in Python 3.11, such as MindSpore's."""

    def parse(*_: object, **__: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(ast, "parse", parse)
    transposed = {"parameters/w": np.arange(6.0).reshape(2, 3).T, "counters/n": np.array(7)}
    path = checkpoint.save(tmp_path, 1, transposed, {**META, "env_steps": 64})
    arrays, _ = checkpoint.load(path)
    for name, array in transposed.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_the_newest_three_are_kept_and_stale_files_removed(tmp_path):
    (tmp_path / "checkpoint-00000001.tmp").write_text("a writer was killed here")
    for iteration in range(1, 6):
        saved(tmp_path, iteration)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == [f"checkpoint-0000000{iteration}.npz" for iteration in (3, 4, 5)]


def test_what_is_written_is_kept_before_damaged_ones_with_higher_numbers(tmp_path):
    for iteration in (7, 8, 9):
        saved(tmp_path, iteration).write_bytes(b"")
    kept = saved(tmp_path, 1)
    assert checkpoint.load_newest(tmp_path)[0] == kept
    saved(tmp_path, 2)
    assert [path.name[-5] for path in checkpoint.list_checkpoints(tmp_path)] == ["1", "2", "9"]


def test_the_newest_is_that_of_the_highest_iteration_however_many_digits_it_has(tmp_path):
    for iteration in (99_999_998, 99_999_999, 10**8, 10**8 + 1):
        newest = saved(tmp_path, iteration)
    (tmp_path / "checkpoint-00000007 (copy).npz").touch()
    assert checkpoint.load_newest(tmp_path)[0] == newest
    numbers = [int(path.stem[11:]) for path in checkpoint.list_checkpoints(tmp_path)]
    assert numbers == [99_999_999, 10**8, 10**8 + 1]
    assert checkpoint.of_iteration(tmp_path, 10**8).name == "checkpoint-100000000.npz"
    with pytest.raises(CheckpointError, match=r"there are those of \[99999999, 100000000, "):
        checkpoint.of_iteration(tmp_path, 7)


def test_every_flipped_byte_is_found_or_harmless(tmp_path):
    path = saved(tmp_path)
    intact = path.read_bytes()
    refused = 0
    for position in range(len(intact)):
        for mask in (0x01, 0xFF):
            damaged = bytearray(intact)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            try:
                arrays, meta = checkpoint.load(path)
            except CheckpointError as error:
                assert str(path) in str(error)
                refused += 1
            else:  # for example a date
                assert {name: array.tobytes() for name, array in arrays.items()} == {
                    name: array.tobytes() for name, array in ARRAYS.items()
                }
                assert meta.items() >= {**META, "iteration": 1, "env_steps": 64}.items()
    assert refused > len(intact)  # of twice as many


def test_every_truncation_is_found(tmp_path):
    path = saved(tmp_path)
    intact = path.read_bytes()
    for size in range(len(intact)):
        path.write_bytes(intact[:size])
        with pytest.raises(CheckpointError, match="is damaged"):
            checkpoint.load(path)


def test_the_one_before_a_damaged_one_is_used(tmp_path):
    for iteration in (1, 2, 3):
        path = saved(tmp_path, iteration)
    path.write_bytes(path.read_bytes()[:-100])
    found, about, damaged = checkpoint.load_newest(tmp_path)
    assert (found.name, about["iteration"]) == ("checkpoint-00000002.npz", 2)
    assert len(damaged) == 1
    assert "checkpoint-00000003.npz is damaged" in damaged[0]
    for left in checkpoint.list_checkpoints(tmp_path):
        left.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no usable checkpoint in"):
        checkpoint.load_newest(tmp_path)


def test_arrays_that_changed_places_are_found(tmp_path):
    """Two arrays of one shape, with valid checksums of the archive."""
    arrays = {"parameters/v": np.zeros(6, np.float32), **ARRAYS}
    path = checkpoint.save(tmp_path, 1, arrays, {**META, "env_steps": 64})
    with zipfile.ZipFile(path) as archive:
        v, w = (archive.read(f"parameters/{name}.npy") for name in "vw")
    rewritten(path, **{"parameters/v.npy": w, "parameters/w.npy": v})
    with pytest.raises(CheckpointError, match="parameters/v is not the array that was saved"):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match="parameters/v is not the array that was saved"):
        checkpoint.load_newest(tmp_path)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"env_steps": 10**30}, "env_steps=1000000000000000000000000000000"),
        ({"env_steps": -64, "iteration": -1}, "no training comes to"),
        ({"num_envs": 0}, "no training comes to"),
        ({"steps_per_iteration": 0}, "no training comes to"),
        ({"env_steps": 127}, "do not fit together"),
        ({"env_steps": 64.0}, "expected whole numbers"),
        ({"env_steps": True}, "expected whole numbers"),
        ({"iteration": "__import__('os')"}, "expected whole numbers"),
        ({"format": 99}, "has format 99"),
        ("not JSON", "is damaged"),
        ("[]", "is damaged"),
        ("{}", "is damaged"),
        (json.dumps({"format": checkpoint.FORMAT}), "is damaged"),
    ],
)
def test_what_no_training_says_of_itself_is_refused(tmp_path, words, reason):
    before, path = saved(tmp_path, 1), saved(tmp_path, 2)
    text = words if isinstance(words, str) else json.dumps({**checkpoint.load(path)[1], **words})
    content = array_file(np.frombuffer(text.encode(), np.uint8))
    rewritten(path, **{"meta.json.npy": content})
    with pytest.raises(CheckpointError, match=reason):
        checkpoint.load(path)
    assert checkpoint.load_newest(tmp_path)[0] == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_parameters_that_are_not_finite_are_neither_written_nor_used(tmp_path, monkeypatch, value):
    before = saved(tmp_path, 1)
    arrays = {**ARRAYS, "parameters/w": np.array([0, value], np.float32)}
    with pytest.raises(StorageError, match="parameters/w is not finite"):
        checkpoint.save(tmp_path, 2, arrays, {**META, "env_steps": 128})
    assert checkpoint.list_checkpoints(tmp_path) == [before]
    monkeypatch.setattr(checkpoint, "_read_back", lambda path: None)
    path = checkpoint.save(tmp_path, 2, arrays, {**META, "env_steps": 128})
    with pytest.raises(CheckpointError, match="parameters/w is not finite"):
        checkpoint.load(path)
    assert checkpoint.load_newest(tmp_path)[0] == before


def test_what_a_disk_does_not_give_back_replaces_nothing(tmp_path, monkeypatch):
    """The disk loses a byte that was written, as failing disks do."""
    kept = [saved(tmp_path, iteration) for iteration in (1, 2, 3)]
    contents = [path.read_bytes() for path in kept]

    def loses(file, *given, write=checkpoint._write):
        write(file, *given)
        file.seek(len(contents[0]) // 2)
        file.write(b"?")

    monkeypatch.setattr(checkpoint, "_write", loses)
    with pytest.raises(StorageError, match="a new checkpoint is not kept"):
        saved(tmp_path, 4)
    assert sorted(tmp_path.iterdir()) == kept
    assert [path.read_bytes() for path in kept] == contents


def replay(rows):
    """Returns a column of 40 KB per row, in pieces."""
    shape = (rows, 4, 2500)
    for row, count in replay_segments.pieces_of(shape, np.dtype("float32")):
        yield np.full((count, *shape[1:]), row, np.float32)


def saved_replay(run, iteration, rows=250):
    """Saves a checkpoint with a replay in one segment."""
    folder = run / replay_segments.FOLDER
    file, checksum = replay_segments.write(folder, iteration, 0, replay(rows))
    segment = Segment(file, (0, 4), (0, rows), (0,), checksum)
    about = {**META, "env_steps": 64 * iteration}
    about["replay"] = asdict(Replay(rows, (("<f4", (2500,)),), (segment,)))
    return checkpoint.save(run / "checkpoints", iteration, {"w": np.ones(3)}, about)


def old_replay(run, iteration, rows=250):
    """Saves a checkpoint with a replay in its file, as in earlier versions."""
    about = {**META, "env_steps": 64 * iteration}
    arrays = {"w": np.ones(3), "replay/0": np.concatenate(list(replay(rows)))}
    return checkpoint.save(run / "checkpoints", iteration, arrays, about)


@pytest.mark.parametrize("save", [saved_replay, old_replay])
def test_what_came_in_pieces_is_an_array_like_others(tmp_path, save):
    path = save(tmp_path, 1)
    arrays, meta = checkpoint.load(path)
    np.testing.assert_array_equal(arrays["replay/0"], np.concatenate(list(replay(250))))
    assert "replay/0" not in checkpoint.load(path, replay=False)[0]
    parts = list(checkpoint.replay_parts(path, meta, np.full(4, 250)))
    assert [number for number, *_ in parts] == [0, 0, 0]
    records = np.concatenate([records for _, _, records, _ in parts])
    assert (records == np.arange(250)[:, None]).all()
    pieces = np.concatenate([piece for *_, piece in parts])
    np.testing.assert_array_equal(pieces, arrays["replay/0"])


@pytest.mark.parametrize("save", [saved_replay, old_replay])
def test_a_replay_that_is_damaged_is_told_where_it_is_needed(tmp_path, save):
    before, path = save(tmp_path, 1), save(tmp_path, 2)
    files = (
        sorted((tmp_path / replay_segments.FOLDER).glob("*")) if save is saved_replay else [path]
    )
    with files[-1].open("r+b") as file:
        file.seek(files[-1].stat().st_size // 2)
        file.write(b"?")
    found, _, (told,) = checkpoint.load_newest(path.parent)
    assert found == before
    assert "damaged" in told
    assert checkpoint.load_newest(path.parent, replay=False)[0] == path  # good enough to play


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(bytes(9))])
def test_a_segment_that_is_not_whole_is_told(tmp_path, damage):
    before, path = saved_replay(tmp_path, 1), saved_replay(tmp_path, 2)
    damage(max((tmp_path / replay_segments.FOLDER).glob("*")))
    found, _, (told,) = checkpoint.load_newest(path.parent)
    assert found == before
    assert f"checkpoint {path} is damaged" in told
    about = json.loads(bytes(np.load(path)["meta.json"]))
    with pytest.raises(StorageError, match="a new checkpoint is not kept"):
        checkpoint.save(path.parent, 3, {}, {**about, "env_steps": 192})
    assert checkpoint.load_newest(path.parent)[0] == before


def test_the_memory_that_writing_and_reading_take_does_not_grow_with_the_replay(tmp_path):
    """240 MB, in a separate process that measures its peak memory."""
    code = f"""
from pathlib import Path
from mindspore_rl.runtime import checkpoint, resuming
from tests.runtime.test_checkpoint import saved_replay

def most():
    return next(int(s.split()[1]) for s in open("/proc/self/status") if s.startswith("VmHWM"))

folder = Path({str(tmp_path)!r})
checkpoint.look(saved_replay(folder, 1))
before = most()
checkpoint.look(saved_replay(folder, 2, 6000))
print(most() - before)
"""
    done = python("-c", code, check=True)
    assert int(done.stdout) < 16 * 1024


def test_all_that_another_job_has_otherwise_is_told(tmp_path):
    class Job:
        algorithm: ClassVar = {"name": "ppo"}
        environment = "/elsewhere/odd.py:Odd"
        config: ClassVar = {"hidden": 32, "seed": 1}
        num_envs, steps_per_iteration, action_mask, layout = 4, 64, None, None
        parameters: ClassVar = {"w": (6,)}
        carried: ClassVar = {"env_state": Value((4, 2), "float32"), "obs": Value((4,), "float32")}

    arrays = {"parameters/w": np.zeros(6), "variables/obs": np.zeros(4)}
    about = {**META, "algorithm": "ppo", "environment": "/here/odd.py:Odd", "env_steps": 64}
    about["config"] = {"hidden": 32, "seed": 2}
    path = checkpoint.save(tmp_path, 1, arrays, about)
    job = Job()
    resuming.check_job(path, checkpoint.load(path)[1], job)

    other = Job()
    other.algorithm, other.environment = {"name": "a2c"}, "CartPole-v1"
    other.num_envs, other.steps_per_iteration = 8, 128
    other.config = {"hidden": 64, "seed": 2}
    other.parameters = {f"w{number}": (6, number) for number in range(4)}
    other.carried = {"obs": Value((8,), "float32")}
    head, tail = f"checkpoint {path} is of another job: ", "; a run goes on only as what it was"
    with pytest.raises(CheckpointError) as raised:
        resuming.check_job(path, checkpoint.load(path)[1], other)
    (told,) = str(raised.value).splitlines()
    assert told.partition(tail)[0] == (
        f"{head}algorithm is ppo in it and a2c here; environment is odd.py:Odd in it and "
        "CartPole-v1 here"
    )

    other.algorithm, other.environment, other.num_envs = job.algorithm, job.environment, 4
    with pytest.raises(CheckpointError) as raised:
        resuming.check_job(path, checkpoint.load(path)[1], other)
    first, *rest = str(raised.value).splitlines()
    assert first.partition(tail)[0] == f"{head}hidden is 32 in it and 64 here"
    assert rest == [
        "  parameters/w0 has no array in it and shape (6, 0) here",
        "  parameters/w1 has no array in it and shape (6, 1) here",
        "  parameters/w2 has no array in it and shape (6, 2) here",
        "  3 more arrays",
    ]

    other.action_mask, about["environment"] = True, other.environment
    unmasked = rf"took no action mask: leave it out, by --env {other.environment},action_mask=false"
    with pytest.raises(CheckpointError, match=unmasked):
        resuming.check_job(path, checkpoint.load(path)[1] | about, other)
    about["environment"], job.environment = "Own-v1", "Own-v1,action_mask=false"
    resuming.check_job(path, checkpoint.load(path)[1] | about, job)
    job.environment = Job.environment
    job.steps_per_iteration, job.config = 32, about["config"]
    with pytest.raises(CheckpointError, match="steps_per_iteration is 64 in it and 32 here"):
        resuming.check_job(path, checkpoint.load(path)[1], job)


class Attack:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_nothing_is_unpickled(tmp_path):
    trace = tmp_path / "it was executed"
    objects = array_file(np.array([Attack(trace)], dtype=object), allow_pickle=True)
    pickle.loads(pickle.dumps(Attack(trace)))
    assert trace.exists()  # the attack works
    trace.unlink()
    path = saved(tmp_path / "checkpoints")
    for name in ("parameters/w.npy", "meta.json.npy"):
        with pytest.raises(CheckpointError, match="is damaged"):
            checkpoint.load(rewritten(path, **{name: objects}))
    path.write_bytes(pickle.dumps(Attack(trace)))
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.load(path)
    with pytest.raises(ValueError, match="pickle"):
        checkpoint.save(tmp_path / "other", 1, {"w": np.array([{}])}, META)
    assert not trace.exists()
