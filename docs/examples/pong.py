"""Atari's Pong as DQN sees it (Mnih et al. 2015): four grey frames of 84 x 84; extra `atari`."""

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

gymnasium.register_envs(ale_py)


def make_pong():
    """Makes Pong; each step is four of the game's, and the frame is the maximum of the last two.

    Frames in colour would be copied at each of the four and not be used.
    """
    game = {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
    env = gymnasium.make("ALE/Pong-v5", **game)
    return FrameStackObservation(AtariPreprocessing(env), 4)
