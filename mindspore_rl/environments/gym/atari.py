"""Atari's games as DQN sees them (Mnih et al. 2015), by the name atari:Pong-v5.

A step is four of the game's, its frame is the maximum of the last two, and an observation is the
last four frames, grey and of 84 x 84. No action is repeated at random.
"""

import inspect
from typing import Any

from mindspore_rl.errors import MissingPackageError, install

PREFIX = "atari:"
STACKED = 4


def register(gymnasium: Any, name: str) -> None:
    """Adds Atari's games to gymnasium's ids, without their greeting.

    Raises:
        MissingPackageError: ale-py is not installed.
    """
    try:
        import ale_py  # noqa: PLC0415 (optional)
    except ModuleNotFoundError as error:
        text = f"{name!r} needs ale-py, which is not installed; {install('atari')}"
        raise MissingPackageError(text, extra="atari") from error
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def make(gymnasium: Any, game: str, options: dict[str, Any]) -> Any:
    """Makes a game; frames in colour would be copied at each of four steps and not be used.

    Args:
        gymnasium: the library.
        game: its id without `ALE/`.
        options: arguments of gymnasium's `AtariPreprocessing`, others are the game's.
    """
    wrappers = gymnasium.wrappers
    known = inspect.signature(wrappers.AtariPreprocessing).parameters
    seen = {key: value for key, value in options.items() if key in known}
    own = {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
    own |= {key: value for key, value in options.items() if key not in known}
    env = gymnasium.make(f"ALE/{game}", disable_env_checker=True, **own)
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env, **seen), STACKED)
