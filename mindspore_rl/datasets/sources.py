"""Reads episodes from `.npz`, HDF5 and Minari data sets, one at a time.

Each kind of file may have one of two layouts. Flat arrays, as in D4RL: `observations`, `actions`,
`rewards`, `terminals` and `timeouts` (or `terminations` and `truncations`), with all episodes
concatenated. Or these arrays for each episode, `episode_0/observations` and so on, as in Minari,
where an episode may have one more observation than steps.
"""

import contextlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mindspore_rl.datasets.episodes import Episode, columns_of
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import ReplayError, described, install
from mindspore_rl.replay.spec import Column

MINARI_FILE = Path("data", "main_data.hdf5")
_NAMES = {
    "obs": ("observations",),
    "action": ("actions",),
    "reward": ("rewards",),
    "terminated": ("terminals", "terminations"),
    "truncated": ("timeouts", "truncations"),
}
"""Names of the columns in such files."""
_ENDS = ("terminated", "truncated")
_EPISODE = re.compile(r"episode_(\d+)")
_BLOCK = 1 << 16
_DAMAGE = (
    OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, RuntimeError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors that a damaged file may raise."""


class Rows(Protocol):
    """An array of a file, read sequentially."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, count: int) -> np.ndarray:
        """Reads the next rows."""


class Archive(Protocol):
    """The arrays of a file."""

    def names(self) -> list[str]:
        """Lists the names at the top level."""

    def __contains__(self, name: str) -> bool:
        """Returns whether there is such an array; one in a group is `group/name`."""

    def rows(self, name: str) -> Rows:
        """Opens an existing array."""


class _NpzRows:
    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._file = archive.open(f"{name}.npy")
        version = np.lib.format.read_magic(self._file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        self.shape, columns_first, self.dtype = read(self._file)
        if self.dtype.hasobject:
            raise ValueError(
                f"{name} holds Python objects, expected numbers; keep episodes of different "
                "lengths as episode_0/observations, episode_1/observations and so on"
            )
        if columns_first and len(self.shape) > 1:
            raise ValueError(f"{name} is in Fortran's order, expected C's: np.ascontiguousarray")
        self._row = np.dtype((self.dtype, self.shape[1:]))

    def read(self, count: int) -> np.ndarray:
        data = self._file.read(count * self._row.itemsize)
        if len(data) < count * self._row.itemsize:
            raise EOFError("an array ends early")
        return np.frombuffer(data, self._row, count)


class _Npz:
    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        members = self._archive.namelist()
        self._names = {name.removesuffix(".npy") for name in members if name.endswith(".npy")}

    def names(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._names})

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def rows(self, name: str) -> Rows:
        return _NpzRows(self._archive, name)


class _Hdf5Rows:
    def __init__(self, data: Any) -> None:
        self._data, self._at = data, 0
        self.shape, self.dtype = data.shape, data.dtype

    def read(self, count: int) -> np.ndarray:
        self._at += count
        return self._data[self._at - count : self._at]


class _Hdf5:
    def __init__(self, path: Path) -> None:
        try:
            import h5py  # noqa: PLC0415 (optional)
        except ImportError as error:
            text = f"{path} is read with h5py, which is not installed; {install('offline')}"
            raise ReplayError(text) from error
        self._group_type = h5py.Group
        self._file = h5py.File(path, "r")

    def names(self) -> list[str]:
        return list(self._file)

    def __contains__(self, name: str) -> bool:
        return name in self._file

    def rows(self, name: str) -> Rows:
        data = self._file[name]
        if isinstance(data, self._group_type):
            raise ValueError(f"{name} is a group of {', '.join(data)}, expected one array")
        return _Hdf5Rows(data)


class EpisodeFile:
    """A file of episodes, read one at a time.

    Attributes:
        environment: its name, if the file has it.
        action_space: of the environment, if the file has it.
        columns: of the episodes.
        lengths: steps of each episode.
        open_end: whether the file does not tell how the last episode ended.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file, and finds its episodes.

        Raises:
            ReplayError: the file is of an unknown kind, or damaged.
        """
        self.path, self.open_end = path, False
        self.environment = ""
        self.action_space: Discrete | Box | None = None
        with self._reading():
            self._open()
            groups = [
                found for name in self._archive.names() if (found := _EPISODE.fullmatch(name))
            ]
            groups.sort(key=lambda found: int(found[1]))
            self._groups = [f"{found[0]}/" for found in groups]
            self.lengths = self._lengths() if groups else self._flat_lengths()
            if not self.lengths or min(self.lengths) < 1:
                raise ValueError("it has no steps" if not groups else "an episode has no steps")
            first = self._parts(self._groups[0] if groups else "")
            self._discrete = first["action"].dtype.kind in "iu"
            size = int(np.prod(first["action"].shape[1:]))
            action = ((), "int32") if self._discrete else ((size,), "float32")
            said = self.action_space
            if (said is not None and isinstance(said, Discrete) != self._discrete) or (
                isinstance(said, Box) and int(np.prod(said.shape)) != size
            ):
                raise ValueError(
                    f"its metadata says that actions are {said}, and they are "
                    f"{first['action'].dtype} {first['action'].shape}"
                )
            self.columns = columns_of(first["obs"].shape[1:], Column("action", *action))

    def episodes(self, space: Discrete | Box | None) -> Iterator[Episode]:
        """Reads the episodes one by one.

        Raises:
            ReplayError: the file is damaged, or has invalid numbers.
        """
        for number, length in enumerate(self.lengths):
            where = self._groups[number] if self._groups else ""
            with self._reading(f", episode {number}"):
                if where or not number:
                    parts = self._parts(where)
                arrays = {name: rows.read(length) for name, rows in parts.items()}
                last = self.open_end and number == len(self.lengths) - 1
                episode = self._episode(arrays, last or bool(where))
                episode.check(f"{self.path}, episode {number}", space)
            yield episode

    @contextlib.contextmanager
    def _reading(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise ReplayError(
                f"{self.path}{where} cannot be read as episodes: "
                f"{error if isinstance(error, ValueError) else described(error)}"
            ) from error

    def _open(self) -> None:
        self._archive: Archive
        if self.path.is_dir():
            if not (self.path / MINARI_FILE).is_file():
                text = f"it has no {MINARI_FILE}; expected a folder of Minari's, in HDF5"
                raise ValueError(text)
            self._archive = _Hdf5(self.path / MINARI_FILE)
            self._read_minari(self.path / MINARI_FILE.with_name("metadata.json"))
        elif self.path.suffix == ".npz":
            self._archive = _Npz(self.path)
        elif self.path.suffix in (".h5", ".hdf5"):
            self._archive = _Hdf5(self.path)
        else:
            raise ValueError("expected a .npz or .hdf5 file, or a folder of Minari's")

    def _read_minari(self, path: Path) -> None:
        """Reads environment and action space from Minari's metadata; older files lack some."""
        if not path.is_file():
            return
        about = json.loads(path.read_text())
        self.environment = str(json.loads(about.get("env_spec") or "{}").get("id", ""))
        space = json.loads(about.get("action_space") or "{}")
        if space.get("type") == "Discrete":
            if space.get("start"):
                raise ValueError(f"actions begin at {space['start']}, expected 0")
            self.action_space = Discrete(space["n"])
        elif space.get("type") == "Box":
            low, high = (tuple(np.ravel(space[key]).tolist()) for key in ("low", "high"))
            self.action_space = Box(tuple(space["shape"]), low, high)

    def _parts(self, group: str) -> dict[str, Rows]:
        """Opens the columns of a group, at their beginning."""
        found = {}
        for part, others in _NAMES.items():
            names = [f"{group}{name}" for name in others]
            name = next((name for name in names if name in self._archive), None)
            if name is not None:
                found[part] = self._archive.rows(name)
            elif part not in _ENDS:
                raise ValueError(f"there is no {names[0]}; there are {self._archive.names()[:9]}")
        if not found["reward"].shape:
            raise ValueError(f"{group}rewards is a single number, expected one of each step")
        if not found.keys() & set(_ENDS):
            names = [f"{group}{name}" for part in _ENDS for name in _NAMES[part]]
            raise ValueError(f"there is none of {', '.join(names)}: where do episodes end?")
        return found

    def _lengths(self) -> list[int]:
        lengths = []
        for group in self._groups:
            parts = self._parts(group)
            lengths.append(parts["reward"].shape[0])
            self._check_sizes(group, parts, lengths[-1])
        return lengths

    def _flat_lengths(self) -> list[int]:
        parts = self._parts("")
        steps = parts["reward"].shape[0]
        self._check_sizes("", parts, steps)
        ends = [np.zeros(1, np.int64)]
        for at in range(0, steps, _BLOCK):
            count = min(_BLOCK, steps - at)
            flags = [_flat(parts[part].read(count)) != 0 for part in _ENDS if part in parts]
            ends.append(np.flatnonzero(np.logical_or.reduce(flags)) + at + 1)
        self.open_end = ends_at = int(np.concatenate(ends)[-1]) < steps
        return np.diff(np.concatenate([*ends, [steps] * ends_at])).astype(int).tolist()

    @staticmethod
    def _check_sizes(group: str, parts: dict[str, Rows], steps: int) -> None:
        for part, rows in parts.items():
            more = (steps, steps + 1) if part == "obs" and group else (steps,)
            if rows.dtype.kind not in "biuf" or rows.shape[:1] not in [(n,) for n in more]:
                raise ValueError(
                    f"{group}{_NAMES[part][0]} is {rows.dtype} {rows.shape}, expected numbers for "
                    f"{steps} steps, as many as there are rewards"
                )

    def _episode(self, arrays: dict[str, np.ndarray], may_be_open: bool) -> Episode:
        action = arrays["action"]
        flags = {part: _flat(arrays[part]) != 0 for part in _ENDS if part in arrays}
        steps = len(action)
        ends = {part: flags.get(part, np.zeros(steps, bool)).copy() for part in _ENDS}
        if self._discrete and action.dtype.kind not in "iu":
            raise ValueError(f"its actions are {action.dtype}, those of the first episode are not")
        if self._discrete and (action != action.astype(np.int32)).any():
            raise ValueError(f"its actions are {action.min()} to {action.max()}, expected int32")
        inside = np.flatnonzero((ends["terminated"] | ends["truncated"])[:-1])
        if len(inside):
            raise ValueError(f"it ends at step {inside[0]} of {steps}, expected at its last one")
        if may_be_open and not ends["terminated"][-1]:
            ends["truncated"][-1] = True
        with np.errstate(over="ignore"):  # `check` reports numbers that are too large
            return Episode(
                arrays["obs"][:steps].astype(np.float32),
                _flat(action).astype(np.int32)
                if self._discrete
                else action.reshape(steps, -1).astype(np.float32),
                _flat(arrays["reward"]).astype(np.float32),
                **ends,
            )


def _flat(array: np.ndarray) -> np.ndarray:
    """Reshapes `[T]` or `[T, 1]` to `[T]`. Raises: ValueError."""
    if array.size != len(array):
        raise ValueError(f"an array is {array.shape}, expected one number a step")
    return array.reshape(-1)
