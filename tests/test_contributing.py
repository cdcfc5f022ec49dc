"""What docs/contributing.md teaches, taken from the page and tried."""

import contextlib
import io
import json
import pathlib
import re

import cases
import keras
import numpy as np
import pytest
from backends import gradients
from scipy import integrate

import keras_vdrop
from keras_vdrop.core.estimators import ESTIMATORS

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "contributing.md"
# One input, of a time and of channels, for a layer of these arguments.
SHAPE = (4, 3)
ARGUMENTS = {"kernel_size": 2, "depth_multiplier": 2, "padding": "same"}
DRAWS = 20_000
SIGMAS = 5

every_estimator = pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "example"))
        for name in ESTIMATORS
    ],
)


@pytest.fixture
def taught():
    """The names that the page defines."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    namespace = {"__name__": "contributing"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), namespace)
    return namespace


@pytest.fixture
def layer_class(taught, monkeypatch):
    """The layer that the page teaches, as one of the layers under test."""
    found = taught["VariationalDepthwiseConv1D"]
    monkeypatch.setitem(
        cases.KERNEL_LAYERS, "taught", (found, ARGUMENTS, SHAPE)
    )
    return found


def model_of(layer):
    model = keras.Sequential(
        [keras.Input(SHAPE), layer, keras.layers.Flatten()]
    )
    model.add(keras_vdrop.VariationalDense(2, num_examples=10))
    return model


def test_the_layer_is_short(layer_class):
    source = PAGE.read_text().split("class VariationalDepthwiseConv1D")[1]
    body = source.split("\n\n\n")[0].splitlines()
    assert len(body) <= 10
    assert layer_class.__module__ == "contributing"
    assert layer_class.keras_class() is keras.layers.DepthwiseConv1D


@cases.every_posterior
@every_estimator
def test_training_call_and_gradients(layer_class, posterior, estimator):
    layer, inputs = cases.build("taught", **posterior, estimator=estimator)
    plain = keras.ops.convert_to_numpy(layer(inputs))
    noisy = keras.ops.convert_to_numpy(layer(inputs, training=True))
    assert noisy.shape == plain.shape
    assert np.abs(noisy - plain).min() > 0
    variables = layer.trainable_variables
    _, _, *found = gradients(
        lambda outputs: keras.ops.mean(keras.ops.square(outputs)), layer, inputs
    )
    assert len(found) == len(variables) == 3
    for gradient, variable in zip(found, variables, strict=True):
        assert np.all(np.isfinite(gradient)), variable.path
        assert np.any(gradient != 0), variable.path


@pytest.mark.slow
@cases.every_posterior
def test_distribution_of_the_outputs(layer_class, posterior):
    layer, inputs = cases.build("taught", **posterior, seed=1)
    samples = cases.draw(layer, inputs, DRAWS)
    mean, variance = cases.moments(layer, inputs)
    error = np.sqrt(variance / DRAWS)
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - mean), SIGMAS * error + 1e-5
    )
    error = variance * np.sqrt(2 / DRAWS)
    np.testing.assert_array_less(
        np.abs(samples.var(0) - variance), SIGMAS * error + 1e-5
    )


@cases.every_posterior
def test_kl_counts_what_it_stands_for(layer_class, posterior):
    layer, _ = cases.build("taught", **posterior)
    alpha = cases.alpha_of_weights(layer)
    if layer.noise == "correlated":
        alpha = alpha[0, :, 0]  # One for each channel of the inputs.
    terms = keras_vdrop.divergence.polynomial(np.log(alpha))
    expected = keras.ops.convert_to_numpy(terms).sum()
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-4)


@cases.every_posterior
@every_estimator
def test_saving(layer_class, posterior, estimator, tmp_path):
    layer, inputs = cases.build("taught", **posterior, estimator=estimator)
    model = model_of(layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())
    np.testing.assert_array_equal(
        loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )
    # The noise is the same too: rates and seeds are in the file.
    for _ in range(2):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(loaded(inputs, training=True)),
            keras.ops.convert_to_numpy(model(inputs, training=True)),
        )


@cases.every_posterior
def test_from_a_plain_layer(layer_class, posterior):
    plain = keras.layers.DepthwiseConv1D(**ARGUMENTS)
    inputs = np.random.default_rng(0).normal(size=(2, *SHAPE))
    expected = keras.ops.convert_to_numpy(plain(inputs))
    config = plain.get_config()
    layer = layer_class(**config, **posterior, rate=0.2, num_examples=10)
    layer.build((None, *SHAPE))
    layer.kernel.assign(plain.kernel)
    layer.bias.assign(plain.bias)
    layer.reset_noise()
    found = keras.ops.convert_to_numpy(layer(inputs))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(layer.dropout_rates(), 0.2, rtol=1e-3)


def test_conversion_of_a_model_keeps_the_layer(layer_class):
    layer, inputs = cases.build("taught", granularity="output")
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    converted = keras_vdrop.to_variational(model, verbose=0, rate=0.1)
    kept, _, dense = converted.layers
    assert type(kept) is layer_class and dense.rate == 0.1
    np.testing.assert_array_equal(kept.dropout_rates(), layer.dropout_rates())
    np.testing.assert_array_equal(
        converted.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


@cases.every_posterior
def test_to_deterministic(layer_class, posterior):
    layer, inputs = cases.build("taught", **posterior)
    model = model_of(layer)
    plain = keras_vdrop.to_deterministic(model)
    assert type(plain.layers[0]) is keras.layers.DepthwiseConv1D
    np.testing.assert_array_equal(
        plain.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


@cases.every_posterior
def test_pruning(layer_class, posterior, capsys):
    unlimited = {"kl": "exact", "max_alpha": None}
    layer, inputs = cases.build("taught", **posterior, **unlimited)
    log_alpha = keras.ops.convert_to_numpy(layer.log_alpha)
    log_alpha = np.linspace(0.0, 6.0, log_alpha.size).reshape(log_alpha.shape)
    cases.set_log_alpha(layer, log_alpha)
    model = model_of(layer)
    pruned = keras_vdrop.to_deterministic(model, prune=2.5)
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    noise = cases.alpha_of_weights(layer) > np.exp(2.5)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(pruned.layers[0].kernel),
        np.where(noise, 0, kernel),
    )
    row = next(
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(layer.name)
    )
    assert row[1:] == [str(kernel.size), str(noise.sum()), "-", "-"]
    layer.kernel.assign(np.where(noise, 0, kernel))
    np.testing.assert_allclose(
        pruned.predict(inputs, verbose=0),
        model.predict(inputs, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_kl_of_ones_own(taught, tmp_path):
    layer = keras_vdrop.VariationalDense(
        2,
        noise="independent",
        kl=taught["quadratic"],
        max_alpha=None,
        num_examples=10,
    )
    model = keras.Sequential([keras.Input((3,)), layer])
    layer.log_alpha.assign(-2.0)
    np.testing.assert_allclose(layer.kl(), 6 * 4.0, rtol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.layers[0].kl(), 6 * 4.0, rtol=1e-6)


def test_a_prior_of_ones_own(taught, tmp_path):
    scale, std = 0.3, 0.5
    layer = keras_vdrop.VariationalDense(
        2,
        kl=taught["Laplace"](scale),
        granularity="weight",
        parameterization="additive",
        max_alpha=None,
        num_examples=10,
    )
    model = keras.Sequential([keras.Input((3,)), layer])
    layer.log_variance.assign(np.full((3, 2), 2 * np.log(std)))

    def density_times_log_ratio(w, mean):
        log_q = -0.5 * ((w - mean) / std) ** 2
        log_q -= np.log(std * np.sqrt(2 * np.pi))
        log_p = -abs(w) / scale - np.log(2 * scale)
        return np.exp(log_q) * (log_q - log_p)

    expected = sum(
        integrate.quad(
            density_times_log_ratio,
            mean - 10 * std,
            mean + 10 * std,
            args=(mean,),
            points=[0.0],
        )[0]
        for mean in keras.ops.convert_to_numpy(layer.kernel).ravel()
    )
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].prior.scale == scale
    np.testing.assert_allclose(loaded.layers[0].kl(), expected, rtol=1e-4)


def test_an_estimator_of_ones_own(taught, monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "signs", taught["signs"])
    layer, inputs = cases.build("dense", estimator="signs")
    mean, variance = cases.moments(layer, inputs)
    outputs = keras.ops.convert_to_numpy(layer(inputs, training=True))
    np.testing.assert_allclose((outputs - mean) ** 2, variance, rtol=1e-3)
