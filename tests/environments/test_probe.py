import numpy as np

from mindspore_rl.environments import registry


def test_constant_ends_at_once_with_reward_1():
    env = registry.make_vector("probe:constant", range(3), 0)
    np.testing.assert_array_equal(env.reset(), np.ones((3, 1)))
    _, _, reward, terminated, truncated = env.step(np.zeros(3, np.int32))
    assert (reward == 1).all()
    assert terminated.all()
    assert not truncated.any()


def test_bandit_pays_the_action_that_follows_the_sign():
    env = registry.make_vector("probe:bandit", range(8), 0)
    obs, seen = env.reset(), []
    for t in range(200):
        seen.append(obs[:, 0])
        good = (obs[:, 0] > 0).astype(np.int32)
        obs, _, reward, terminated, _ = env.step(good if t % 2 else 1 - good)
        assert (reward == (1 if t % 2 else -1)).all()
        assert terminated.all()
    assert set(np.unique(seen)) == {-1.0, 1.0}
    assert abs(np.mean(seen)) < 0.1
    # Neighbouring environments and steps are not correlated.
    correlation = np.corrcoef(np.array(seen).T) - np.eye(8)
    assert np.abs(correlation).max() < 0.3


def test_memory_pays_what_was_shown_first():
    env = registry.make_vector("probe:memory", range(8), 0)
    obs, shown = env.reset(), []
    for step in range(25):
        if step % 5 == 0:
            shown.append(obs[:, 0])
        assert (np.abs(obs[:, 0]) == (step % 5 == 0)).all()
        assert (obs[:, 1] == (step % 5 == 4)).all()
        wanted = (shown[-1] > 0).astype(np.int32)
        obs, final_obs, reward, terminated, _ = env.step(wanted if step < 20 else 1 - wanted)
        assert (reward == (step % 5 == 4) * (1 if step < 20 else -1)).all()
        assert (terminated == (step % 5 == 4)).all()
        assert (final_obs[:, 0] == 0).all()
    assert set(np.unique(shown)) == {-1.0, 1.0}


def test_pixels_show_the_side_that_pays():
    env = registry.make_vector("probe:pixels", range(8), 0)
    obs, places = env.reset(), set()
    for _ in range(100):
        columns = obs[:, 0].max(1)
        right = (columns[:, 18:] == 200).any(1)
        assert (right != (columns[:, :18] == 200).any(1)).all()
        places |= {image.tobytes() for image in obs}
        obs, final_obs, reward, terminated, _ = env.step(right.astype(np.int32))
        assert obs.dtype == final_obs.dtype == np.uint8
        assert (reward == 1).all()
        assert terminated.all()
    assert len(places) > 300  # of 560


def test_delay_pays_in_the_second_step():
    env = registry.make_vector("probe:delay", range(1), 0)
    obs = env.reset()
    got = []
    for _ in range(4):
        next_obs, final_obs, reward, terminated, _ = env.step(np.zeros(1, np.int32))
        got.append((obs.item(), final_obs.item(), reward.item(), terminated.item()))
        obs = next_obs
    assert got == [(0, 1, 0, False), (1, 1, 1, True)] * 2


def test_truncated_never_terminates():
    env = registry.make_vector("probe:truncated", range(2), 0)
    env.reset()
    steps = [env.step(np.zeros(2, np.int32)) for _ in range(30)]
    assert all((step[2] == 1).all() and not step[3].any() for step in steps)
    assert [t for t, step in enumerate(steps) if step[4].all()] == [9, 19, 29]
