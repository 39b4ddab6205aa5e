"""Films an episode as its environment renders it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.environments import registry
from mindspore_rl.environments.options import split_options
from mindspore_rl.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingPackageError,
    MsrlError,
    install,
)

FRAMES_PER_S = 30
FORMS = (".mp4", ".gif", ".mkv", ".webm", ".avi", ".mov")


def drawn(name: str, mode: str) -> str:
    """Returns the name of a variant of an environment that renders itself.

    Args:
        name: of the environment; for an in-graph one its Python counterpart is used.
        mode: `rgb_array` for images, or `human` for the screen.
    """
    found = registry.python_name(name) or name
    if mode == "rgb_array":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen is needed
    known = split_options(found)[1]
    return found if "render_mode" in known else f"{found},render_mode={mode}"


class Film:
    """A video recorder, which collects frames.

    Args:
        file: with one of the endings `FORMS`.

    Raises:
        MissingPackageError: imageio is not installed.
        ConfigError: the file has another ending.
    """

    def __init__(self, file: Path) -> None:
        try:
            import imageio.v3  # noqa: PLC0415  (optional)
        except ImportError as error:
            text = f"{file} needs imageio, which is not installed; {install('video')}"
            raise MissingPackageError(text, "video") from error
        if file.suffix not in FORMS:
            raise ConfigError(f"{file}: expected a video, one of {', '.join(FORMS)}")
        self._write: Callable[..., Any] = imageio.v3.imwrite
        self.file, self.frames = file, list[np.ndarray]()

    def take(self, picture: Any) -> None:
        """Adds a frame, `[H, W, 3]` uint8.

        Raises:
            EnvironmentFailure: the environment gave no image.
        """
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise EnvironmentFailure(
                f"the environment draws no pictures: render() gave {type(picture).__name__}, "
                "expected an array [H, W, 3]; its render_mode must be 'rgb_array'"
            )
        height, width = (size - size % 2 for size in picture.shape[:2])  # codecs need even sizes
        self.frames.append(picture[:height, :width])

    def save(self) -> None:
        """Writes the video.

        Raises:
            MsrlError: the file cannot be written.
        """
        options: dict[str, Any] = {"fps": FRAMES_PER_S, "macro_block_size": 2}
        if self.file.suffix == ".gif":
            options = {"duration": 1000 / FRAMES_PER_S}
        try:
            self._write(self.file, np.stack(self.frames), **options)
        except (OSError, ValueError, ImportError) as error:
            text = f"{self.file} cannot be written ({error}); {install('video')}"
            raise MsrlError(text) from error
