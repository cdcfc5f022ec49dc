"""The posterior N(theta, sigma**2) against N(theta, alpha * theta**2)."""

import keras
import numpy as np
import pytest
from backends import gradients
from cases import build
from cases import draw
from cases import every_kernel_layer
from scipy import special

import keras_vdrop


def pair(case, **arguments):
    """The same theta and alpha, in both parameterizations."""
    arguments = {"granularity": "weight", **arguments}
    multiplicative, inputs = build(case, **arguments)
    additive, _ = build(case, parameterization="additive", **arguments)
    kernel = multiplicative.kernel.numpy()
    additive.kernel.assign(kernel)
    log_alpha = keras.ops.convert_to_numpy(multiplicative.log_alpha)
    additive.log_variance.assign(log_alpha + np.log(kernel**2))
    return multiplicative, additive, inputs


@every_kernel_layer
@pytest.mark.parametrize("kl", ["polynomial", "exact"])
def test_same_kl_and_rates(case, kl):
    multiplicative, additive, _ = pair(case, kl=kl)
    np.testing.assert_allclose(multiplicative.kl(), additive.kl(), rtol=1e-5)
    np.testing.assert_allclose(
        multiplicative.dropout_rates(), additive.dropout_rates(), rtol=1e-5
    )


@every_kernel_layer
def test_same_distribution(case):
    multiplicative, additive, inputs = pair(case, seed=4)
    # With one seed the draws are equal, and so are the distributions.
    np.testing.assert_allclose(
        draw(additive, inputs, 2),
        draw(multiplicative, inputs, 2),
        rtol=1e-4,
        atol=1e-5,
    )


def test_initial_rate():
    layer = keras_vdrop.VariationalDense(
        40, rate=0.2, granularity="weight", parameterization="additive"
    )
    layer.build((None, 30))
    np.testing.assert_allclose(layer.dropout_rates(), 0.2, rtol=1e-5)
    np.testing.assert_allclose(
        np.exp(layer.log_variance.numpy()),
        0.25 * layer.kernel.numpy() ** 2,
        rtol=1e-4,
    )


def test_gradient_of_the_kl_reaches_kernel_and_variance():
    layer, inputs = build(
        "dense",
        granularity="weight",
        parameterization="additive",
        kl="exact",
        use_bias=False,
    )
    theta = layer.kernel.numpy().astype("float64")
    variance = np.exp(layer.log_variance.numpy().astype("float64"))
    *_, by_kernel, by_log_variance = gradients(
        keras.ops.sum, layer, np.zeros_like(inputs)
    )
    u = np.sqrt(theta**2 / (2 * variance))
    slope = -u * special.dawsn(u) / 10
    np.testing.assert_allclose(by_log_variance, slope, rtol=1e-4)
    np.testing.assert_allclose(by_kernel, -2 * slope / theta, rtol=1e-4)


@pytest.mark.parametrize("kl", ["exact", "sigmoid", "ard", "polynomial"])
@pytest.mark.parametrize("theta", [0.0, 1e-25, 1e-19, 1e-10, 1e10])
def test_small_and_large_theta(kl, theta):
    layer = keras_vdrop.VariationalDense(
        4,
        granularity="weight",
        parameterization="additive",
        kl=kl,
        max_alpha=1.0 if kl == "polynomial" else None,
        num_examples=10,
    )
    layer.build((None, 3))
    layer.kernel.assign(np.full((3, 4), theta))
    if kl == "polynomial":
        layer.log_variance.assign(
            layer.log_variance.constraint(layer.log_variance)
        )
    for value in gradients(keras.ops.mean, layer, np.ones((2, 3), "float32")):
        assert np.all(np.isfinite(value))
    assert np.isfinite(layer.kl())
    assert np.all(np.isfinite(layer.dropout_rates()))


def test_constraint_follows_the_kernel():
    layer = keras_vdrop.VariationalDense(
        3,
        granularity="weight",
        parameterization="additive",
        max_alpha=0.5,
        rate=0.3,
        num_examples=1,
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    x = np.random.normal(size=(32, 4)).astype("float32")
    # Smaller weights with the variance of before have a larger alpha.
    layer.kernel.assign(0.5 * layer.kernel)
    assert keras.ops.convert_to_numpy(layer.log_alpha).min() > np.log(0.5)
    model.fit(x, x[:, :3], verbose=0)
    log_alpha = keras.ops.convert_to_numpy(layer.log_alpha)
    np.testing.assert_allclose(log_alpha, np.log(0.5), atol=1e-4)


def test_log_variance_belongs_to_the_additive_posterior():
    layer, _ = build("dense")
    assert layer.log_variance is None


@pytest.mark.parametrize(
    "arguments, argument",
    [
        ({}, "granularity"),
        ({"granularity": "input"}, "granularity"),
        ({"granularity": "weight", "adaptive": False}, "adaptive"),
        ({"noise": "correlated"}, "noise"),
    ],
)
def test_what_it_cannot_be_combined_with(arguments, argument):
    with pytest.raises(ValueError, match=f"argument `{argument}`.*additive"):
        keras_vdrop.VariationalDense(
            3, parameterization="additive", **arguments
        )
