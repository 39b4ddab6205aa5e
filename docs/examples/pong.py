"""Atari's Pong as DQN saw it (Mnih et al. 2015): four frames, grey, 84 x 84; extra `atari`."""

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

gymnasium.register_envs(ale_py)


def make_pong():
    """Each step is four of the game's, the last two of which are laid over each other."""
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(env), 4)
