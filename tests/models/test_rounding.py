"""Weights rounded by their posterior, and the search for the smallest file."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_vdrop
from keras_vdrop.coding import grid
from keras_vdrop.models import compressed

SPARSE = {"granularity": "weight", "kl": "exact", "max_alpha": None}


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


def network(**arguments):
    arguments = {**SPARSE, **arguments}
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDense(8, activation="relu", **arguments),
            layers.BatchNormalization(),
            keras_vdrop.VariationalDense(3, **arguments),
        ]
    )
    for seed, layer in enumerate(keras_vdrop.variational_layers(model)):
        generator = np.random.default_rng(seed)
        layer.bias.assign(generator.normal(size=layer.bias.shape))
        if arguments.get("noise") == "correlated":
            layer.log_alpha.assign(np.full(layer.log_alpha.shape, -3.0))
            continue
        log_alpha = generator.uniform(-6, 6, layer.kernel.shape)
        if layer.parameterization == "additive":
            layer.log_variance.assign(
                log_alpha + np.log(to_numpy(layer.kernel) ** 2)
            )
        else:
            layer.log_alpha.assign(log_alpha)
    return model


def step_of(layer, precision, prune=np.inf):
    """The definition, by the median in numpy."""
    kernel = to_numpy(layer.kernel).astype("float64")
    log_alpha = np.broadcast_to(
        to_numpy(layer.log_alpha)
        if layer.noise == "independent"
        else to_numpy(layer.log_alpha) * np.ones_like(kernel),
        kernel.shape,
    )
    deviation = np.exp(log_alpha / 2) * np.abs(kernel)
    median = np.exp(np.median(np.log(deviation[log_alpha <= prune])))
    return 2.0 ** np.round(np.log2(precision * median))


def assert_multiples(values, step):
    values = to_numpy(values).astype("float64") / step
    np.testing.assert_array_equal(values, np.rint(values))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"parameterization": "additive"},
        {"noise": "correlated", "granularity": "layer"},
    ],
    ids=["multiplicative", "additive", "correlated"],
)
@pytest.mark.parametrize("precision", [0.3, 1.0, 2.0])
def test_nearest_multiples_of_the_step(arguments, precision):
    model = network(**arguments)
    plain = keras_vdrop.to_deterministic(model, precision=precision)
    for layer, other in zip(model.layers, plain.layers, strict=True):
        if not isinstance(layer, layers.Dense):
            for a, b in zip(layer.weights, other.weights, strict=True):
                np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
            continue
        step = step_of(layer, precision)
        for name in ("kernel", "bias"):
            before = to_numpy(getattr(layer, name))
            after = to_numpy(getattr(other, name))
            assert_multiples(after, step)
            assert np.abs(after - before).max() <= step / 2
            assert not np.signbit(after[after == 0]).any()


def test_with_pruning():
    model = network()
    plain = keras_vdrop.to_deterministic(
        model, prune=2.0, precision=1.0, verbose=0
    )
    first, last = model.layers[0], model.layers[-1]
    assert_multiples(plain.layers[-1].kernel, step_of(last, 1.0, 2.0))
    # A constant that a removed unit leaves behind is on the grid too.
    assert_multiples(plain.layers[-1].bias, step_of(last, 1.0, 2.0))
    assert_multiples(plain.layers[0].kernel, step_of(first, 1.0, 2.0))
    kept = to_numpy(first.log_alpha) <= 2
    assert np.count_nonzero(to_numpy(plain.layers[0].kernel)) <= kept.sum()


def test_a_fine_step_changes_nothing():
    model = network()
    plain = keras_vdrop.to_deterministic(model, precision=1e-9)
    for layer, other in zip(model.layers, plain.layers, strict=True):
        if isinstance(layer, layers.Dense):
            np.testing.assert_array_equal(
                to_numpy(layer.kernel), to_numpy(other.kernel)
            )


def test_every_kind_of_layer():
    """Attention, recurrent layers and tables have several kernels."""
    tokens = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4)(tokens)
    x = layers.LSTM(3, return_sequences=True)(x)
    x = layers.MultiHeadAttention(2, 2)(x, x)
    x = layers.Conv1D(3, 2)(x)
    plain = keras.Model(tokens, layers.Dense(2)(x))
    # Recurrent layers have noise on their inputs by default.
    model = keras_vdrop.to_variational(
        plain, rate=0.2, granularity="layer", verbose=0
    )
    rounded = keras_vdrop.to_deterministic(model, precision=0.5)
    before, after = len(compressed.to_bytes(plain)), 0
    for a, b in zip(plain.weights, rounded.weights, strict=True):
        kernel = "bias" not in a.name
        a, b = to_numpy(a), to_numpy(b)
        if kernel:
            # The deviation of every weight is half of it: sqrt(0.25).
            step = 2.0 ** np.round(np.log2(0.25 * np.median(np.abs(a))))
            np.testing.assert_array_equal(b, np.rint(b / step) * step)
            assert np.abs(a - b).max() <= step / 2 * (1 + 1e-6)
    after = len(compressed.to_bytes(rounded))
    assert after < 0.6 * before


@pytest.mark.parametrize("precision", [0, -1.0, "1", np.inf, True])
def test_bad_precision(precision):
    with pytest.raises(ValueError, match="`precision`"):
        keras_vdrop.to_deterministic(network(), precision=precision)


def data(model):
    """What the model itself predicts, so that its loss is zero."""
    x = np.random.default_rng(7).normal(size=(200, 6)).astype("float32")
    return x, model.predict(x, verbose=0)


@pytest.mark.parametrize(
    "variational", [pytest.param(True, marks=pytest.mark.slow), False]
)
def test_smallest(variational, capsys):
    model = network()
    if not variational:
        model = keras_vdrop.to_deterministic(model)
    before = model.get_weights()
    x, y = data(model)
    sizes = []
    for allowed in (0.001, 0.1):
        small = keras_vdrop.compress(model, x, y, "mse", allowed)
        loss = np.mean((small.predict(x, verbose=0) - y) ** 2)
        assert 0 < loss <= allowed * 1.001
        assert not keras_vdrop.variational_layers(small)
        sizes.append(len(compressed.to_bytes(small)))
        shown = capsys.readouterr().out.splitlines()[-1]
        assert shown.startswith(f"{sizes[-1]:,} bytes for ")
    assert sizes[1] < sizes[0] < len(compressed.to_bytes(model))
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_smallest_takes_the_loss_of_the_model():
    model = keras_vdrop.to_deterministic(network())
    x, y = data(model)
    model.compile("sgd", "mse")
    small = keras_vdrop.compress(model, x, y, allowed=0.1, verbose=0)
    again = keras_vdrop.compress(model, x, y, "mse", 0.1, verbose=0)
    for a, b in zip(small.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_smallest_rounds_what_removed_units_leave():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="sigmoid"),
            layers.Dense(3),
        ]
    )
    # A unit without inputs gives its constant to the next bias, which then
    # has all 24 digits.
    kernel = to_numpy(model.layers[0].kernel).copy()
    kernel[:, 4] = 0
    model.layers[0].kernel.assign(kernel)
    model.layers[0].bias.assign(np.linspace(-2, 2, 8))
    kernel = to_numpy(model.layers[1].kernel).copy()
    kernel[4] = 2
    model.layers[1].kernel.assign(kernel)
    x, y = data(model)
    small = keras_vdrop.compress(model, x, y, "mse", 0.01, verbose=0)
    assert small.layers[0].units < 8
    for weight in small.get_weights():
        exponent = grid.find_exponent(weight)
        assert exponent is not None
        assert np.abs(weight).max() / 2.0**exponent < 2**9


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"loss": None}, "loss"),
        ({"allowed": 0}, "allowed"),
        ({"prune": ()}, "prune"),
        ({"precision": 1.0}, "precision"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_smallest_refuses(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        model = network()
        keras_vdrop.compress(
            model, *data(model), **{"loss": "mse", **arguments}
        )
