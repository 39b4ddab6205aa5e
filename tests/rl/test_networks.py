import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, value_and_grad

from mindspore_rl import programs
from mindspore_rl.config import to_dict
from mindspore_rl.environments import registry as by_name
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs import registry
from mindspore_rl.rl.networks import (
    MLP,
    RunningMeanStd,
    actor_critic,
    flat_size,
    network,
    orthogonal,
    torso_shape,
)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_orthogonal(shape):
    weight = orthogonal(shape, 3.0, seed=1, index=2)
    assert weight.dtype == np.float32
    assert weight.shape == shape
    gram = weight @ weight.T if shape[0] < shape[1] else weight.T @ weight
    np.testing.assert_allclose(gram, 9.0 * np.eye(min(shape)), atol=1e-5)
    np.testing.assert_array_equal(weight, orthogonal(shape, 3.0, seed=1, index=2))
    for seed, index in ((1, 3), (2, 2), (1, (2, 1))):
        assert np.abs(weight - orthogonal(shape, 3.0, seed, index)).max() > 0.1


class Learner(nn.Cell):
    """The operations of a compiled region: forward and merge inside a loop."""

    def __init__(self):
        super().__init__()
        self.tanh = MLP(4, (8, 6), 2, 0.01, seed=5, name_index=0)
        self.relu = MLP(4, (8,), 2, 1.0, seed=5, name_index=1, activation="relu")
        self.stats = RunningMeanStd((4,))

    def construct(self, turn, x, means, variances, counts):
        while turn < 3:
            self.stats.merge(means[turn], variances[turn], counts[turn])
            turn = turn + 1
        return self.tanh(x), self.relu(x), self.stats.normalise(x, 1.5)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_networks_and_statistics(mode):
    ms.set_context(mode=mode)
    ms.set_context(jit_syntax_level=ms.STRICT)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 4)).astype(np.float32)
    batches = [(2 + 3 * rng.standard_normal((n, 4))).astype(np.float32) for n in (5, 1, 900)]
    learner = Learner()
    tanh, relu, normalised = learner(
        Tensor(0, ms.int32),
        Tensor(x),
        Tensor(np.stack([batch.mean(0) for batch in batches])),
        Tensor(np.stack([batch.var(0) for batch in batches])),
        Tensor(np.array([len(batch) for batch in batches], np.float32)),
    )

    root2 = np.sqrt(2.0)
    hidden = np.tanh(x @ orthogonal((8, 4), root2, 5, (0, 0)).T)
    hidden = np.tanh(hidden @ orthogonal((6, 8), root2, 5, (0, 1)).T)
    expected = hidden @ orthogonal((2, 6), 0.01, 5, (0, 2)).T
    np.testing.assert_allclose(tanh.asnumpy(), expected, rtol=1e-4, atol=1e-6)
    hidden = np.maximum(x @ orthogonal((8, 4), root2, 5, (1, 0)).T, 0.0)
    expected = hidden @ orthogonal((2, 8), 1.0, 5, (1, 1)).T
    np.testing.assert_allclose(relu.asnumpy(), expected, rtol=1e-4, atol=1e-6)

    seen = np.concatenate(batches).astype(np.float64)
    stats = learner.stats
    np.testing.assert_allclose(stats.mean.asnumpy(), seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats.variance.asnumpy(), seen.var(0), rtol=1e-4)
    np.testing.assert_allclose(stats.count.asnumpy(), 906.0, rtol=1e-6)
    expected = np.clip((x - seen.mean(0)) / seen.std(0), -1.5, 1.5)
    np.testing.assert_allclose(normalised.asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_only_the_layers_are_trained():
    names = [parameter.name for parameter in Learner().trainable_params()]
    assert len(names) == len(set(names)) == 10
    assert not any("stats" in name for name in names)


def test_uniform_layers_fill_the_range_that_their_inputs_give():
    first, _, last = MLP(25, (400,), 100, 3.0, 1, 7, "relu", "uniform").layers.cell_list
    for layer, bound in ((first, 1 / 5), (last, 3 / 20)):
        for values in (layer.weight.asnumpy(), layer.bias.asnumpy()):
            assert 0.95 * bound < np.abs(values).max() <= bound
            assert abs(values.mean()) < 0.15 * bound
    again, other = (MLP(25, (400,), 100, 3.0, 1, i, "relu", "uniform") for i in (7, 8))
    np.testing.assert_array_equal(
        first.weight.asnumpy(), again.layers.cell_list[0].weight.asnumpy()
    )
    assert (first.weight.asnumpy() != other.layers.cell_list[0].weight.asnumpy()).mean() > 0.99


def test_unknown_activation_and_beginning():
    with pytest.raises(ValueError, match="'gelu'.*'relu', 'tanh'"):
        MLP(1, (), 1, 1.0, seed=0, name_index=0, activation="gelu")
    with pytest.raises(ValueError, match="'zeros'.*'orthogonal', 'uniform'"):
        MLP(1, (), 1, 1.0, seed=0, name_index=0, initial="zeros")


def images(height, width, dtype="uint8"):
    return EnvironmentSpec(
        "screen", (4, height, width), Discrete(2), 0, None, in_graph=False, obs_dtype=dtype
    )


def numbers(cell):
    return sum(parameter.size for parameter in cell.get_parameters())


def test_natures_network_is_that_of_the_paper():
    """For 84 x 84 x 4 and 512 units after it, it has 1,686,180 parameters with 4 actions."""
    net = network("cnn", images(84, 84), (512,), 4, 1.0, seed=3, name_index=1)
    assert numbers(net) == 1_686_180
    obs = np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84), np.uint8)
    assert net(Tensor(obs)).shape == (2, 4)


def test_impalas_network_is_that_of_the_paper():
    """Fifteen convolutions of 3 x 3 in three stages, then 11 x 11 x 32 numbers into 256."""
    net = network("impala", images(84, 84), (256,), 4, 1.0, seed=3, name_index=1)
    convolutions = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [16] * 5 + [32] * 10
    assert numbers(net.mlp) == 11 * 11 * 32 * 256 + 256 + 256 * 4 + 4
    obs = np.zeros((2, 4, 84, 84), np.uint8)
    assert net(Tensor(obs)).shape == (2, 4)


@pytest.mark.parametrize(("torso", "size"), [("cnn", 36), ("impala", 11)])
def test_bytes_are_scaled_and_images_know_their_rows(torso, size):
    """The result is that of a loop over images, with the bytes divided by 255."""
    net = network(torso, images(size, size), (8,), 2, 1.0, seed=3, name_index=1)
    again = network(torso, images(size, size), (8,), 2, 1.0, seed=3, name_index=1)
    obs = np.random.default_rng(0).integers(0, 256, (3, 4, size, size), np.uint8)
    found = net(Tensor(obs)).asnumpy()
    rows = np.concatenate([again(Tensor(row[None])).asnumpy() for row in obs])
    np.testing.assert_allclose(found, rows, atol=1e-5)
    features = net.convolutions(Tensor(np.float32(obs / 255))).asnumpy()
    wanted = net.mlp(Tensor(np.maximum(features, 0).reshape(3, -1))).asnumpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.ptp(found, axis=0).min() > 1e-3


@pytest.mark.parametrize(
    ("torso", "spec", "normalise", "match"),
    [
        ("mlp", images(84, 84), False, r"screen gives images.*\[4, 84, 84\].*torso=cnn"),
        ("cnn", images(84, 84, "float32"), False, r"\[4, 84, 84\] float32: leave torso=mlp"),
        ("gnn", images(84, 84), False, "torso=gnn is none of mlp, cnn, impala"),
        ("cnn", images(84, 84), True, "normalise_obs=true with torso=cnn.*leave normalise_obs out"),
    ],
)
def test_torsos_are_for_their_observations(torso, spec, normalise, match):
    with pytest.raises(ConfigError, match=match):
        torso_shape(torso, spec, normalise)


def test_small_images_are_told():
    with pytest.raises(ConfigError, match=r"images of 35 x 84 .* at least 36 x 36: .*impala"):
        network("cnn", images(35, 84), (8,), 2, 1.0, seed=3, name_index=1)


@pytest.mark.parametrize("name", ["a2c", "dqn", "discrete_sac", "impala", "ppo", "qr_dqn"])
def test_pixels_pass_through_no_mlp_in_silence(name):
    trainer = programs.trainer_class(registry.find_algorithm(name))
    with pytest.raises(ConfigError, match="probe:pixels gives images.*torso=cnn"):
        trainer(trainer.Config(env="probe:pixels"), by_name.spec("probe:pixels"))
    assert flat_size(by_name.spec("CartPole-v1")) == 4


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("a2c", {"torso": "gru"}, "torso=gru has a state, expected mlp, cnn or impala"),
        ("impala", {"torso": "gru"}, "torso=gru has a state, expected mlp, cnn or impala"),
        ("r2d2", {"torso": "mlp"}, "torso=mlp has no state, expected gru or lstm"),
        ("r2d2", {"num_steps": 10, "learnt_steps": 5}, "learnt_steps=5 is less than num_steps=10"),
        ("dqn", {"atoms": 1}, "atoms is 1, .* expected two atoms or more"),
        ("dqn", {"lowest": 1.0, "highest": 1.0}, "expected .*lowest below highest"),
        ("sac", {"quantiles": 2, "dropped": 2}, "dropped is 2 of 2 quantiles, expected fewer"),
    ],
)
def test_options_that_an_algorithm_cannot_have(name, options, match):
    config = programs.trainer_class(registry.find_algorithm(name)).Config
    with pytest.raises(ValueError, match=match):
        config(**options)


def test_rows_that_share_what_stands_behind_them():
    """As if each row had the values: a critic's rows of three agents, and their common state."""
    chance = np.random.default_rng(0)
    own, state = (chance.standard_normal(s).astype(np.float32) for s in ((6, 4), (2, 5)))
    whole = np.concatenate([own, np.repeat(state, 3, axis=0)], axis=1)
    for hidden in ((), (8, 8)):
        mlp = MLP(9, hidden, 2, 1.0, seed=1, name_index=0)
        wanted = mlp(Tensor(whole)).asnumpy()
        np.testing.assert_allclose(mlp(Tensor(own), Tensor(state)), wanted, atol=1e-5)


ACTOR_CRITICS = ("a2c", "impala", "ppo")
PIXELS = {"env": "probe:pixels", "torso": "cnn", "hidden": [8]}


def _parameters(name, config):
    """Returns the names of a network's parameters, as a saved configuration makes it."""
    plan = {"file": str(registry.find_algorithm(name))}
    trainer = programs.load_trainer(plan, config, by_name.spec(config["env"]))
    return {p.name for p in trainer.actor.network.trainable_params()}


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_a_run_from_before_shared_torsos_has_two(name):
    two = _parameters(name, PIXELS)
    assert two == _parameters(name, {**PIXELS, "share_torso": False})
    assert sum("convolutions" in parameter for parameter in two) == 12
    config = programs.trainer_class(registry.find_algorithm(name)).Config(torso="cnn", hidden=(8,))
    new = _parameters(name, {**to_dict(config), **PIXELS})
    assert new == _parameters(name, {**PIXELS, "share_torso": True})
    assert sum("convolutions" in parameter for parameter in new) == 6


@pytest.mark.parametrize(("torso", "env"), [("mlp", "CartPole-v1"), ("impala", "probe:pixels")])
@pytest.mark.parametrize("hidden", [(), (8, 6)])
def test_a_shared_torso_ends_in_its_last_hidden_layer(torso, env, hidden):
    spec = by_name.spec(env)
    shared, policy, critic = actor_critic(torso, spec, hidden, 3, seed=1, share=True)
    whole = network(torso, spec, hidden, 3, 0.01, seed=1, name_index=4)
    last = (whole if torso == "mlp" else whole.mlp).layers.cell_list[-1]
    obs = Tensor(np.ones((2, *spec.obs_shape), spec.obs_dtype))
    features = shared(obs)
    np.testing.assert_allclose(last(features).asnumpy(), whole(obs).asnumpy(), atol=1e-6)
    assert policy(features).shape == (2, 3)
    assert critic(features).shape == (2, 1)


class _AroundAnUpdate(nn.Cell):
    """The network's outputs before and after a step of gradient descent, in one graph."""

    def __init__(self, net):
        super().__init__()
        self.net, self.descent = net, nn.SGD(net.trainable_params(), 0.5)
        self.differentiate = value_and_grad(self.total, None, net.trainable_params())

    def total(self, x, common):
        return self.net(x, common).sum()

    def construct(self, x, common):
        first, grads = self.differentiate(x, common)
        self.descent(grads)
        return first, self.total(x, common)


def test_a_compiled_network_with_common_features_reads_its_weights_after_an_update():
    """MindSpore compiles `weight[:, :2]` as if nothing could have changed the weight between."""
    rng = np.random.default_rng(0)
    x, common = (Tensor(rng.normal(size=shape).astype(np.float32)) for shape in ((6, 2), (3, 4)))
    found = []
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=mode)
        cell = _AroundAnUpdate(MLP(6, (5,), 1, 1.0, 1, 1))
        found.append([float(value.asnumpy()) for value in cell(x, common)])
    assert abs(found[0][1] - found[0][0]) > 0.1
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
