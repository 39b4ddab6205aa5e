"""A loop by hand over environments of a library, which a vector of them must equal."""

import numpy as np


def reset_seed(seed, index, total):
    return int(np.random.SeedSequence((seed, index, total)).generate_state(1)[0])


def ends_by_hand(vector, envs, seed, actions, first=3, taken=int, seen=np.float32):
    """Plays a vector and its environments by hand, which must give the same.

    Args:
        actions: for each step an action of all, or a function of what is observed.
        first: the index of the first environment.
        taken: the action as an environment takes it.
        seen: what becomes of an observation.

    Returns: how many episodes were terminated, and how many truncated.
    """

    def reset(i, total):
        return seen(envs[i].reset(seed=reset_seed(seed, first + i, total))[0])

    obs, ends = vector.reset(), np.zeros(2, int)
    np.testing.assert_array_equal(obs, [reset(i, 0) for i in range(len(envs))])
    for t, action in enumerate(actions):
        action = action(obs) if callable(action) else action  # noqa: PLW2901
        obs, final_obs, reward, terminated, truncated = vector.step(action)
        for i, env in enumerate(envs):
            wanted, gain, end, cut, _ = env.step(taken(action[i]))
            np.testing.assert_array_equal(final_obs[i], seen(wanted))
            assert (reward[i], terminated[i], truncated[i]) == (np.float32(gain), end, cut)
            wanted = reset(i, t + 1) if end or cut else seen(wanted)
            np.testing.assert_array_equal(obs[i], wanted)
            ends += [end, cut]
    return ends.tolist()
