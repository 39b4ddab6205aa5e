import math

import numpy as np
import pytest

from mindspore_rl.rl import returns

GAMMA, LAMBDA = 0.97, 0.9


def rollout(num_steps, num_envs, seed=0):
    """A random rollout in which value[t + 1] is final_value[t] unless an episode ends."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    reward, value, final_value = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    inside = ~(terminated | truncated)[:-1]
    final_value[:-1] = np.where(inside, value[1:], final_value[:-1])
    return reward, value, final_value, terminated, truncated


def loop_gae(reward, value, final_value, terminated, truncated):
    """The textbook loop, one environment and one step at a time, in float64."""
    advantage = np.zeros(reward.shape)
    for b in range(reward.shape[1]):
        following = 0.0
        for t in reversed(range(reward.shape[0])):
            successor = 0.0 if terminated[t, b] else float(final_value[t, b])
            if terminated[t, b] or truncated[t, b]:
                following = 0.0
            following = reward[t, b] + GAMMA * successor - value[t, b] + GAMMA * LAMBDA * following
            advantage[t, b] = following
    return advantage


def loop_lambda_returns(reward, final_value, terminated, truncated, gae_lambda):
    results = np.zeros(reward.shape)
    last = reward.shape[0] - 1
    for b in range(reward.shape[1]):
        for t in range(last, -1, -1):
            if terminated[t, b]:
                successor = 0.0
            elif truncated[t, b] or t == last:
                successor = float(final_value[t, b])
            else:
                successor = (1 - gae_lambda) * final_value[t, b] + gae_lambda * results[t + 1, b]
            results[t, b] = reward[t, b] + GAMMA * successor
    return results


def everything(reward, value, final_value, terminated, truncated):
    advantage, target = returns.gae(
        reward, value, final_value, terminated, truncated, GAMMA, LAMBDA
    )
    return (
        advantage,
        target,
        returns.lambda_returns(reward, final_value, terminated, truncated, GAMMA, LAMBDA),
        returns.lambda_returns(reward, final_value, terminated, truncated, GAMMA),
    )


@pytest.mark.parametrize(("num_steps", "num_envs"), [(1, 3), (2, 1), (13, 5), (64, 3)])
def test_returns_equal_the_loops(run, num_steps, num_envs):
    data = rollout(num_steps, num_envs)
    reward, value, final_value, terminated, truncated = data
    advantage, target, lambda_returns, n_step = run(everything, *data)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(advantage, loop_gae(*data), **close)
    np.testing.assert_allclose(target, loop_gae(*data) + value, **close)
    np.testing.assert_allclose(
        lambda_returns,
        loop_lambda_returns(reward, final_value, terminated, truncated, LAMBDA),
        **close,
    )
    np.testing.assert_allclose(
        n_step, loop_lambda_returns(reward, final_value, terminated, truncated, 1.0), **close
    )
    # The identity between the two estimators: A_t + V_t is the lambda-return.
    np.testing.assert_allclose(target, lambda_returns, **close)


def income_twice(reward, before):
    income = returns.discounted_income(reward, before, GAMMA)
    return income, returns.discounted_income(reward[2:], income[1], GAMMA)


def test_income_goes_on_from_rollout_to_rollout(run):
    """It is the loop forwards in time; the second rollout starts from the first's last row."""
    reward, *_ = rollout(5, 3)
    before = np.array([0.0, -1.0, 4.0], np.float32)
    wanted, current = np.zeros((5, 3)), before.astype(np.float64)
    for t in range(5):
        current = reward[t] + GAMMA * current
        wanted[t] = current
    income, rest = run(income_twice, reward, before)
    np.testing.assert_allclose(income, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rest, wanted[2:], rtol=1e-5, atol=1e-6)


def off_policy(*shape):
    """Log-probabilities under the policy that learns and under the one that acted."""
    rng = np.random.default_rng(1)
    return rng.normal(-1.0, 0.7, (2, *shape)).astype(np.float32)


def loop_vtrace(logs, data, gae_lambda, rho_bar, c_bar):
    """Equation 1 of Espeholt et al. 2018 as it stands: a sum over t and a product over i."""
    reward, value, final_value, terminated, truncated = (x.astype(np.float64) for x in data)
    ratio = np.exp(logs[0].astype(np.float64) - logs[1])
    rho, c = np.minimum(rho_bar, ratio), gae_lambda * np.minimum(c_bar, ratio)
    delta = rho * (reward + GAMMA * np.where(terminated, 0.0, final_value) - value)
    ended = (terminated + truncated) > 0
    target, advantage = value.copy(), np.zeros(reward.shape)
    num_steps, num_envs = reward.shape
    for b in range(num_envs):
        for s in range(num_steps):
            for t in range(s, num_steps):
                target[s, b] += GAMMA ** (t - s) * np.prod(c[s:t, b]) * delta[t, b]
                if ended[t, b]:
                    break
        for s in range(num_steps):
            successor = 0.0 if terminated[s, b] else final_value[s, b]
            if not ended[s, b] and s < num_steps - 1:
                successor = gae_lambda * target[s + 1, b] + (1 - gae_lambda) * value[s + 1, b]
            advantage[s, b] = rho[s, b] * (reward[s, b] + GAMMA * successor - value[s, b])
    return target, advantage


@pytest.mark.parametrize(
    ("shape", "constants"),
    [
        ((1, 3), (1.0, 1.0, 1.0)),
        ((13, 5), (1.0, 1.0, 1.0)),
        ((13, 5), (LAMBDA, 2.0, 0.8)),
        ((13, 5), (1.0, math.inf, math.inf)),
    ],
)
def test_vtrace_is_the_papers_sum(run, shape, constants):
    logs, data = off_policy(*shape), rollout(*shape)

    def both(*arrays):
        return returns.vtrace(*arrays, GAMMA, *constants)

    found = run(both, *logs, *data)
    for one, wanted in zip(found, loop_vtrace(logs, data, *constants), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("gae_lambda", "bound"), [(LAMBDA, 1.0), (1.0, math.inf)])
def test_vtrace_of_data_of_the_same_policy(run, gae_lambda, bound):
    """Lambda-returns (with lambda 1 n-step returns) and generalised advantages."""
    data, (log_prob, _) = rollout(13, 5), off_policy(13, 5)

    def both(log_prob, *data):
        constants = GAMMA, gae_lambda
        found = returns.vtrace(log_prob, log_prob, *data, *constants, bound, bound)
        return (*found, *returns.gae(*data, *constants))

    target, advantage, wanted, _ = run(both, log_prob, *data)
    reward, _, *ends = data
    np.testing.assert_allclose(
        target, loop_lambda_returns(reward, *ends, gae_lambda), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(advantage, wanted, rtol=1e-5, atol=1e-5)


def ends(reward, value, final_value, terminated, truncated):
    return returns.gae(reward, value, final_value, terminated, truncated, 0.5, 1.0)


def windows(reward, ended):
    return returns.n_step(reward, ended, GAMMA)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_windows_end_with_their_episode(run, steps):
    rng = np.random.default_rng(steps)
    reward = rng.standard_normal((64, steps)).astype(np.float32)
    ended = rng.random(reward.shape) < 0.3
    total, last, factor = run(windows, reward, ended)
    for row in range(64):
        length = 1
        while length < steps and not ended[row, length - 1]:
            length += 1
        expected = sum(GAMMA**j * float(reward[row, j]) for j in range(length))
        np.testing.assert_allclose(total[row], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(factor[row], GAMMA**length, rtol=1e-6)
        assert last[row].tolist() == [float(j == length - 1) for j in range(steps)]


def test_hand_worked_ends(run):
    """Reward 1, V = 0 before and 8 after each step, gamma 1/2: only a termination loses the 8."""
    ones = np.ones((2, 3), np.float32)
    end = np.array([[True, False, False], [False, False, False]])
    cut = np.array([[False, True, False], [False, False, False]])
    advantage, _ = run(ends, ones, 0 * ones, 8 * ones, end, cut)
    # Last row: 1 + 8/2 = 5. First row: 1; 1 + 8/2; 1 + 8/2 + 5/2.
    np.testing.assert_array_equal(advantage, [[1.0, 5.0, 7.5], [5.0, 5.0, 5.0]])


def recurrent_q(reward, final_value, terminated, truncated):
    returns_of_two = returns.n_step_returns(reward, final_value, terminated, truncated, 0.5, 2)
    scaled = returns.rescaled(final_value, 0.5)
    return returns_of_two, scaled, returns.unscaled(scaled, 0.5)


def test_hand_worked_n_step_returns(run):
    """Reward 1, V = 8 behind each step, gamma 1/2, two steps: 1 + 8/2, or 1 + 1/2 + 8/4."""
    ones = np.ones((4, 3), np.float32)
    end, cut = np.zeros((2, 4, 3), bool)
    end[1, 1] = cut[1, 2] = True
    found, scaled, again = run(recurrent_q, ones, 8.0 * ones, end, cut)
    np.testing.assert_array_equal(found[:, 0], [3.5, 3.5, 3.5, 5.0])
    np.testing.assert_array_equal(found[:, 1], [1.5, 1.0, 3.5, 5.0])  # ends at 1
    np.testing.assert_array_equal(found[:, 2], [3.5, 5.0, 3.5, 5.0])  # is cut at 1
    np.testing.assert_array_equal(scaled, 6.0 * ones)  # sqrt(8 + 1) - 1 + 8/2
    np.testing.assert_array_equal(again, 8.0 * ones)


def of_two_players(reward, final_value, terminated, truncated):
    return returns.n_step_returns(reward, final_value, terminated, truncated, -0.5, 3)


def test_what_one_player_gains_the_other_loses(run):
    """The second player wins with the third move after one; the discount is 1/2."""
    reward = np.array([[0.0], [0.0], [0.0], [1.0], [0.0]], np.float32)
    end = np.array([[False], [False], [False], [True], [False]])
    found = run(of_two_players, reward, np.full((5, 1), 8.0, np.float32), end, np.zeros_like(end))
    # Three moves behind the first one it is the other's turn, whose value is 8: -8/8.
    np.testing.assert_array_equal(np.ravel(found), [-1.0, 0.25, -0.5, 1.0, -4.0])


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_rescaled_values_come_back(run, epsilon):
    def there_and_back(value):
        return returns.rescaled(value, epsilon), returns.unscaled(
            returns.rescaled(value, epsilon), epsilon
        )

    value = np.float32([-1e4, -3.0, -1e-3, 0.0, 0.2, 3.0, 1e4])
    scaled, again = run(there_and_back, value)
    size = np.abs(value.astype(np.float64))
    expected = np.sign(value) * (np.sqrt(size + 1) - 1) + epsilon * value
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)
    np.testing.assert_allclose(again, value, rtol=1e-4, atol=1e-6)


def munchausen(value, action):
    return returns.munchausen_reward(value, action, 0.9, 0.5), value


def test_munchausen_reward_worked_by_hand(run):
    """pi is (1, e) / (1 + e) at temperature 1/2; the second row's logarithm is below the bound."""
    value, action = np.array([[1.0, 1.5], [0.0, 9.0]], np.float32), np.array([1, 0], np.int32)
    first = 0.9 * 0.5 * math.log(math.e / (1.0 + math.e))
    np.testing.assert_allclose(run(munchausen, value, action)[0], [first, -0.9], rtol=1e-5)
