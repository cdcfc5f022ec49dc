"""MC dropout and ensembles, where mean and variance are known."""

import concurrent.futures

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.core import sampling as sampling_scope
from keras_vdrop.models.monte_carlo_dropout import MonteCarloDropout

SAMPLES = 2000
SIGMAS = 5
X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


def run(model, x=X, **arguments):
    arguments = {"verbose": 0, "seed": 1, "num_samples": 32, **arguments}
    return keras_vdrop.predict(model, x, **arguments)


def ones(*shape):
    return np.ones(shape, "float32")


# The rate, and the variance of the factor of each input.
FACTORS = {
    "Dropout": (0.3, 0.3 / 0.7),
    "GaussianDropout": (0.3, 0.3 / 0.7),
    "SpatialDropout1D": (0.3, 0.3 / 0.7),
}


@pytest.mark.parametrize("name", FACTORS)
def test_moments(name):
    rate, variance = FACTORS[name]
    layer = getattr(keras.layers, name)(rate)
    model = keras.Sequential([keras.Input((2, 3)), layer])
    found = run(model, ones(2, 2, 3), dropout=True, num_samples=SAMPLES)
    error = np.sqrt(variance / SAMPLES)
    assert np.all(np.abs(found.mean - 1) < SIGMAS * error)
    # Of a variance; the fourth moment of dropout is at most three times that
    # of a normal distribution.
    error = 3 * variance * np.sqrt(2 / SAMPLES)
    assert np.all(np.abs(found.std**2 - variance) < SIGMAS * error)


def test_alpha_dropout_keeps_mean_and_variance():
    x = np.random.default_rng(1).normal(size=(1, 4000)).astype("float32")
    model = keras.Sequential(
        [keras.Input((4000,)), keras.layers.AlphaDropout(0.3)]
    )
    found = run(model, x, dropout=True, num_samples=4, keep_samples=True)
    assert np.all(np.abs(found.samples.mean((1, 2))) < SIGMAS / np.sqrt(4000))
    assert np.all(np.abs(found.samples.std((1, 2)) - 1) < 0.1)
    assert np.all(found.std.mean() > 0.1)


def network(dropout=0.5):
    """With layers that must stay as at inference."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GaussianNoise(1.0),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(3),
        ]
    )


def test_other_layers_are_as_at_inference():
    model = network(1e-12)
    model(10 * X, training=True)  # moves the statistics
    expected = model.predict(X, verbose=0)
    found = run(model, dropout=True, num_samples=3)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-5, atol=1e-6)
    assert np.all(found.std < 1e-5)


def state(model):
    return [keras.ops.convert_to_numpy(v) for v in model.variables]


def test_the_model_is_the_same_afterwards():
    model = network()
    model.compile("sgd", "mse")
    expected, before = model.predict(X, verbose=0), state(model)
    first, again = (run(model, dropout=True) for _ in range(2))
    np.testing.assert_array_equal(first.mean, again.mean)
    assert np.all(first.std > 0)
    other = run(model, dropout=True, seed=2)
    assert not np.any(first.mean == other.mean)
    for ours, theirs in zip(state(model), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
    assert "call" not in vars(model.layers[-2])
    model.fit(X, ones(6, 3), verbose=0)


def test_other_threads_and_models_with_the_same_layer():
    layer = keras.layers.Dropout(0.5)
    one, other = (
        keras.Sequential([keras.Input((100,)), layer]) for _ in range(2)
    )

    def factors(model):
        return np.unique(keras.ops.convert_to_numpy(model(ones(1, 100))))

    scope = sampling_scope.scope("weights", [], dropout=True)
    with scope, MonteCarloDropout(one):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for model in (one, other):
                assert list(pool.submit(factors, model).result()) == [1]
        with MonteCarloDropout(other):
            assert list(factors(other)) == [0, 2]
        assert list(factors(one)) == [0, 2]
    assert "call" not in vars(layer) and list(factors(one)) == [1]


def test_masks_are_new_for_each_sample_example_and_batch():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.add(keras.layers.GaussianDropout(0.5))
    arguments = {"dropout": True, "keep_samples": True, "num_samples": 4}
    found = run(model, ones(6, 1), batch_size=2, **arguments)
    assert len(np.unique(found.samples)) == 24
    # Two layers have masks of their own.
    x = keras.Input((1,))
    both = [keras.layers.GaussianDropout(0.5, seed=1)(x) for _ in range(2)]
    found = run(keras.Model(x, both), ones(6, 1), **arguments)
    assert len(np.unique(np.stack(found.samples))) == 48


def test_inside_attention():
    x = keras.Input((5, 4))
    layer = keras.layers.MultiHeadAttention(2, 3, dropout=0.5)
    model = keras.Model(x, layer(x, x))
    inputs = np.random.default_rng(0).normal(size=(2, 5, 4))
    assert np.all(run(model, inputs, dropout=True).std > 0)


def test_together_with_learned_noise():
    layers = [keras.layers.Dropout(0.5), keras_vdrop.VariationalDense(3)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    alone = run(model)
    for sampling in ("weights", "local"):
        both = run(model, dropout=True, sampling=sampling)
        assert np.all(both.std > 2 * alone.std)
    np.testing.assert_array_equal(run(model).mean, alone.mean)


def lines(*slopes):
    """Models of one weight each."""
    models = []
    for slope in slopes:
        initializer = keras.initializers.Constant(slope)
        layer = keras.layers.Dense(1, kernel_initializer=initializer)
        models.append(keras.Sequential([keras.Input((1,)), layer]))
    return models


def test_ensemble():
    found = run(lines(1, 2, 6), ones(3, 1), keep_samples=True)
    assert found.num_samples == 3 and found.samples.shape == (3, 3, 1)
    np.testing.assert_allclose(found.mean, 3.0)
    np.testing.assert_allclose(found.std, np.std([1, 2, 6]), rtol=1e-6)


def test_ensemble_of_classifiers():
    models = [network() for _ in range(3)]
    logits = np.stack([model.predict(X, verbose=0) for model in models])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for data in (X, ((X[n : n + 2],) for n in (0, 2, 4))):
        found = run(models, data, from_logits=True)
        mean = p.mean(0)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-4)
        entropy = -(mean * np.log(mean)).sum(-1)
        expected = -(p * np.log(p)).sum(-1).mean(0)
        np.testing.assert_allclose(
            found.mutual_information, entropy - expected, atol=1e-5
        )


def test_ensemble_of_variational_models():
    models = [
        keras.Sequential(
            [keras.Input((4,)), keras_vdrop.VariationalDense(3, rate=0.3)]
        )
        for _ in range(2)
    ]
    found = run(models, keep_samples=True, num_samples=4)
    first = run(models[0], keep_samples=True, num_samples=4)
    assert found.num_samples == 8
    np.testing.assert_allclose(found.samples[:4], first.samples, rtol=1e-5)
    # The same model twice draws other noise.
    twice = run([models[0]] * 2, keep_samples=True, num_samples=4)
    assert len(np.unique(twice.samples[:, 0, 0])) == 8


def test_models_have_equal_shares():
    noisy = keras_vdrop.VariationalDense(
        1, kernel_initializer="ones", use_bias=False, rate=1e-12
    )
    models = [*lines(5), keras.Sequential([keras.Input((1,)), noisy])]
    found = run(models, ones(2, 1), keep_samples=True, num_samples=4)
    assert found.samples.shape == (8, 2, 1)
    np.testing.assert_allclose(found.mean, 3.0, rtol=1e-5)


def test_refused():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for wrong in (model, [], [model, 3], "model"):
        with pytest.raises(ValueError, match="argument `model`"):
            run(wrong)
    with pytest.raises(ValueError, match="no dropout layer"):
        run(model, dropout=True)
    with pytest.raises(ValueError, match="`dropout=True`"):
        run(network())
    with pytest.raises(ValueError, match="argument `dropout`"):
        run(network(), dropout=1)
    with pytest.raises(ValueError, match="outputs of the same shapes"):
        run([model, network()])
