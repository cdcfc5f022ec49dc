"""Recurrent layers: Keras's at inference, noise tied over a sequence."""

import keras
import numpy as np
import pytest
from backends import gradients
from backends import operations

import keras_vdrop

X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
DRAWS = 4000
SIGMAS = 5

CORRELATED = {"noise": "correlated", "granularity": "input"}
SAMPLED = {"noise": "independent", "estimator": "batch"}
ADDITIVE = {
    **SAMPLED,
    "granularity": "weight",
    "parameterization": "additive",
}
every_posterior = pytest.mark.parametrize(
    "posterior",
    [{}, CORRELATED, {"estimator": "batch"}, SAMPLED, ADDITIVE],
    ids=["layer", "input", "batch", "independent", "additive"],
)


def build(**arguments):
    layer = keras_vdrop.VariationalLSTM(4, num_examples=10, **arguments)
    layer.build(X.shape)
    return layer


def twin(layer):
    plain = keras.layers.LSTM.from_config(keras.layers.LSTM.get_config(layer))
    plain.use_cudnn = layer.use_cudnn  # Which the config has not (3.15).
    plain.build(X.shape)
    cell = layer.cell
    values = [cell.kernel, cell.recurrent_kernel]
    values += [] if cell.bias is None else [cell.bias]
    for variable, value in zip(plain.weights, values, strict=True):
        variable.assign(value)
    return plain


def to_numpy(outputs):
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]


@every_posterior
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"return_sequences": True, "return_state": True},
        {"go_backwards": True, "unroll": True},
        {"use_bias": False, "use_cudnn": False},
    ],
    ids=str,
)
def test_inference_is_that_of_keras(posterior, arguments):
    layer = build(**posterior, **arguments)
    for mask in (None, np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)):
        try:
            expected = to_numpy(twin(layer)(X, mask=mask))
        except AttributeError:  # Keras 3.15 on torch, with `unroll`.
            continue
        found = to_numpy(layer(X, mask=mask))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_inference_draws_nothing():
    layer = build()
    plain = twin(layer)
    assert operations(layer, X, training=False) == operations(
        plain, X, training=False
    )


def lstm(layer, x, on_inputs, on_state, kernel=None, recurrent=None):
    """The last state of an LSTM in numpy, with factors for each example."""
    cell = layer.cell
    w, u, b = map(
        keras.ops.convert_to_numpy,
        (cell.kernel, cell.recurrent_kernel, cell.bias),
    )
    w = w if kernel is None else kernel
    u = u if recurrent is None else recurrent
    h = c = np.zeros((*x.shape[:-2], 4))

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    for step in range(x.shape[-2]):
        z = (x[..., step, :] * on_inputs) @ w + (h * on_state) @ u + b
        i, f, g, o = np.split(z, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    return h


def assert_same_distribution(found, expected):
    """By mean and deviation; both samples have errors."""
    spread = np.sqrt(found.var(0) + expected.var(0))
    np.testing.assert_array_less(
        np.abs(found.mean(0) - expected.mean(0)),
        SIGMAS * spread / np.sqrt(len(found)),
    )
    # The kurtosis of a bounded output is below that of a normal one.
    np.testing.assert_allclose(
        found.std(0), expected.std(0), rtol=SIGMAS / np.sqrt(len(found))
    )


@pytest.mark.parametrize("granularity", ["layer", "input"])
def test_correlated_noise_is_tied_over_the_sequence(granularity):
    layer = build(granularity=granularity, rate=0.3, seed=1)
    batch = np.repeat(X[:1], DRAWS, axis=0)
    (found,) = to_numpy(layer(batch, training=True))
    generator = np.random.default_rng(0)
    std = np.sqrt(0.3 / 0.7)
    expected = lstm(
        layer,
        batch,
        1 + std * generator.normal(size=(DRAWS, 3)),
        1 + std * generator.normal(size=(DRAWS, 4)),
    )
    assert_same_distribution(found.astype("float64"), expected)


def test_a_weight_sample_is_one_for_all_steps_and_examples():
    layer = build(**SAMPLED, rate=0.3, seed=1)
    batch = keras.ops.convert_to_tensor(np.stack([X[0], X[0]]))
    draws = 600
    kernel, recurrent = (weight.generator for weight in layer.random_weights)

    def call(keys):
        with kernel.hold(keys[0]), recurrent.hold(keys[1]):
            return layer(batch, training=True)

    keys = keras.ops.stack([kernel.split(draws), recurrent.split(draws)], 1)
    found = keras.ops.convert_to_numpy(keras.ops.map(call, keys))
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    generator = np.random.default_rng(0)
    std = np.sqrt(0.3 / 0.7)
    w = keras.ops.convert_to_numpy(layer.cell.kernel)
    u = keras.ops.convert_to_numpy(layer.cell.recurrent_kernel)
    expected = np.stack(
        [
            lstm(
                layer,
                X[0],
                1,
                1,
                w * (1 + std * generator.normal(size=w.shape)),
                u * (1 + std * generator.normal(size=u.shape)),
            )
            for _ in range(draws)
        ]
    )
    assert_same_distribution(found[:, 0].astype("float64"), expected)


@every_posterior
def test_gradients_reach_everything_and_are_finite(posterior):
    layer = build(**posterior)
    for value in gradients(keras.ops.sum, layer, X):
        assert np.all(np.isfinite(value)) and np.any(value != 0)


@every_posterior
def test_kl_counts_both_kernels(posterior):
    layer = build(**posterior, rate=0.5, kl="lower_bound")
    assert len(layer.losses) == 2
    log_alpha = {"kernel": -1.0, "recurrent_kernel": -2.0}
    for weight, value in zip(
        layer.random_weights, log_alpha.values(), strict=True
    ):
        weight.rate = 1 / (1 + np.exp(-value))
        weight.reset_noise()
    independent = layer.noise == "independent"
    counts = (3 * 16, 4 * 16) if independent else (3, 4)
    expected = 0.5 * counts[0] + 1.0 * counts[1]
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)


@every_posterior
def test_fit_and_file(posterior, tmp_path):
    layer = build(**posterior)
    model = keras.Sequential(
        [keras.Input((5, 3)), layer, keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse")
    x = np.random.default_rng(0).normal(size=(64, 5, 3)).astype("float32")
    history = model.fit(x, x[:, -1, :1], epochs=5, verbose=0).history["loss"]
    assert history[-1] < history[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    plain = keras_vdrop.to_deterministic(model)
    assert type(plain.layers[0]) is keras.layers.LSTM
    np.testing.assert_array_equal(
        plain.predict(x, verbose=0), model.predict(x, verbose=0)
    )


def test_stateful_layers_keep_the_state_that_keras_keeps():
    layer = keras_vdrop.VariationalLSTM(4, stateful=True, num_examples=10)
    model = keras.Sequential([keras.Input((5, 3), batch_size=2), layer])
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((2, 4)), batch_size=2, verbose=0)
    plain = keras_vdrop.to_deterministic(model)
    assert plain.layers[0].stateful
    # Not by `reset_state`, which Keras 3.10 cannot do with a recent jax.
    for state in layer.states:
        state.assign(np.zeros(state.shape))
    for _ in range(2):
        np.testing.assert_array_equal(
            model.predict(X, batch_size=2, verbose=0),
            plain.predict(X, batch_size=2, verbose=0),
        )


@pytest.mark.parametrize(
    "arguments",
    [
        {"noise": "independent"},
        {"estimator": "flipout"},
        {"estimator": "example"},
    ],
    ids=str,
)
def test_estimators_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match="argument `estimator`"):
        keras_vdrop.VariationalLSTM(4, **arguments)
