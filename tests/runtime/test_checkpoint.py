"""Checkpoints: whole or refused, never half written, never executed."""

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl.errors import CheckpointError, StorageError
from mindspore_rl.runtime import checkpoint

META = {"num_envs": 4, "env_steps": 256, "steps_per_iteration": 256}
ARRAYS = {"parameters/w": np.arange(6, dtype=np.float32), "episodes/length": np.arange(4)}


def saved(folder: Path, iteration: int = 1) -> Path:
    return checkpoint.save(folder, iteration, ARRAYS, {**META, "env_steps": 256 * iteration})


def rewritten(path: Path, **members: bytes) -> Path:
    """The archive with other contents under its members' names, checksums right."""
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
    assert meta == {**META, "env_steps": 1792, "iteration": 7, "format": checkpoint.FORMAT}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].tobytes() == array.tobytes()


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
            else:  # a date, say
                assert {name: array.tobytes() for name, array in arrays.items()} == {
                    name: array.tobytes() for name, array in ARRAYS.items()
                }
                assert meta == {**META, "iteration": 1, "format": checkpoint.FORMAT}
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
    found, damaged = checkpoint.load_newest(tmp_path)
    assert found.name == "checkpoint-00000002.npz"
    assert len(damaged) == 1
    assert "checkpoint-00000003.npz is damaged" in damaged[0]
    for left in checkpoint.list_checkpoints(tmp_path):
        left.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no usable checkpoint in"):
        checkpoint.load_newest(tmp_path)


class Attack:
    """Leaves a file behind if it is ever unpickled."""

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


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        "[]",
        "{}",
        json.dumps({"format": checkpoint.FORMAT}),
        json.dumps({**META, "format": checkpoint.FORMAT, "iteration": "__import__('os')"}),
        json.dumps({**META, "format": 99, "iteration": 1}),
    ],
)
def test_strange_words_about_itself_are_refused(tmp_path, text):
    content = array_file(np.frombuffer(text.encode(), np.uint8))
    with pytest.raises(CheckpointError, match=r"is damaged|has format 99"):
        checkpoint.load(rewritten(saved(tmp_path), **{"meta.json.npy": content}))


@pytest.mark.parametrize(
    "wrong", [{"env_steps": 10**30}, {"env_steps": -256}, {"env_steps": 512}, {"iteration": 2**60}]
)
def test_numbers_that_cannot_be_are_refused(tmp_path, wrong):
    path = saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        meta = json.loads(np.load(io.BytesIO(archive.read("meta.json.npy"))).tobytes())
    text = json.dumps({**meta, **wrong}).encode()
    rewritten(path, **{"meta.json.npy": array_file(np.frombuffer(text, np.uint8))})
    with pytest.raises(CheckpointError, match=r"expected whole numbers|are not .* iterations"):
        checkpoint.load(path)


def test_arrays_that_were_exchanged_are_found(tmp_path):
    path = saved(tmp_path)
    other = array_file(ARRAYS["parameters/w"][::-1])
    with pytest.raises(CheckpointError, match="parameters/w are not those that were saved"):
        checkpoint.load(rewritten(path, **{"parameters/w.npy": other}))


def test_what_is_not_finite_is_neither_saved_nor_loaded(tmp_path, monkeypatch):
    wrong = {"parameters/w": np.array([1.0, np.nan], np.float32)}
    with pytest.raises(StorageError, match="parameters/w is not finite"):
        checkpoint.save(tmp_path, 1, wrong, META)
    assert not checkpoint.list_checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(np, "isfinite", lambda array: np.ones(array.shape, bool))
        path = checkpoint.save(tmp_path, 1, wrong, META)
    with pytest.raises(CheckpointError, match="parameters/w is not finite"):
        checkpoint.load(path)


def test_what_cannot_be_read_again_does_not_replace_anything(tmp_path, monkeypatch):
    saved(tmp_path, 1)

    def loses_a_byte(descriptor):
        size = os.fstat(descriptor).st_size
        if size:
            os.truncate(descriptor, size - 1)

    monkeypatch.setattr(os, "fsync", loses_a_byte)
    with pytest.raises(StorageError, match="what was just written is not what is read"):
        saved(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.npz"]


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from mindspore_rl.errors import StorageError
from mindspore_rl.runtime import checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoint.save(Path(sys.argv[1]), 2, {"w": np.zeros(10_000)}, {})
except StorageError as error:
    print(error)
"""


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path):
    path = saved(tmp_path)
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "checkpoint-00000002.npz cannot be written (File too large)" in done.stdout
    assert done.stderr == ""
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
