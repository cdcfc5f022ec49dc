"""Alpha has its limit under any optimizer, and can come back from beyond."""

import keras
import numpy as np
import pytest
from backends import derivatives
from backends import gradients
from cases import POSTERIORS
from cases import build

import keras_vdrop
from keras_vdrop import backend
from keras_vdrop.core import pointwise

every_posterior = pytest.mark.parametrize(
    "posterior", POSTERIORS.values(), ids=POSTERIORS
)


def test_one_way_limit():
    x = np.array([-1.0, 0.5, 0.5, 2.0, 2.0])
    sign = np.array([1.0, 1.0, -1.0, 1.0, -1.0], "float32")

    def function(x):
        limited = pointwise.one_way_limit(x, limit=0.5)
        return keras.ops.multiply(sign, keras.ops.square(limited))

    found = keras.ops.convert_to_numpy(
        function(keras.ops.convert_to_tensor(x, "float32"))
    )
    np.testing.assert_array_equal(found, sign * np.minimum(x, 0.5) ** 2)
    (slope,), _ = derivatives(function, x)
    # Zero only where a step downhill would lead further out.
    np.testing.assert_array_equal(slope, [-2, 1, -1, 1, 0])


def test_hard_limit():
    x = np.array([-1.0, 0.5, 2.0])
    (slope,), _ = derivatives(
        lambda x: keras.ops.square(backend.hard_limit(x, 0.5)), x
    )
    np.testing.assert_array_equal(slope, [-2, 1, 0])


# Large enough that backends without fused operations look for the largest
# alpha first.
MANY = (130, 130)


def limited_variances(beyond):
    """Log alphas, kernels, upstream gradients; all near the limit of 0."""
    generator = np.random.default_rng(0)
    log_alpha = generator.uniform(-2, 0, MANY)
    if beyond:
        log_alpha[::7] += 2.5
    kernel = generator.normal(size=MANY)
    return log_alpha, kernel, generator.normal(size=MANY)


@pytest.mark.parametrize("beyond", [False, True], ids=["within", "beyond"])
def test_limited_weight_variance(beyond):
    log_alpha, kernel, upstream = limited_variances(beyond)
    upstream = upstream.astype("float32")
    (by_log_alpha, by_kernel), _ = derivatives(
        lambda x, y: keras.ops.multiply(
            upstream, pointwise.limited_weight_variance(x, y, 0.0)
        ),
        log_alpha,
        kernel,
    )
    alpha = np.minimum(np.exp(log_alpha), 1.0)
    outward = (log_alpha > 0) & (upstream < 0)
    expected = np.where(outward, 0, upstream * alpha * kernel**2)
    np.testing.assert_allclose(by_log_alpha, expected, rtol=1e-5, atol=1e-6)
    expected = 2 * upstream * alpha * kernel
    np.testing.assert_allclose(by_kernel, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beyond", [False, True], ids=["within", "beyond"])
def test_limited_exp(beyond):
    log_alpha, mean, upstream = limited_variances(beyond)
    upstream = upstream.astype("float32")
    mean[0, :4] = 0, 0, 1e-25, 1
    log_variance = log_alpha + np.log(np.maximum(mean**2, 1.2e-38))

    def function(x):
        means = keras.ops.convert_to_tensor(mean, "float32")
        return keras.ops.multiply(
            upstream, pointwise.limited_exp(x, means, 0.0)
        )

    (slope,), curvature = derivatives(function, log_variance)
    alpha = np.minimum(np.exp(log_alpha), 1.0)
    outward = (log_alpha > 0) & (upstream < 0)
    expected = np.where(outward, 0, upstream * alpha * mean**2)
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-6)
    if not beyond:
        # An exponential is its own derivative.
        np.testing.assert_allclose(
            curvature[0][0], expected, rtol=1e-4, atol=1e-6
        )


def test_limited_exp_of_zeros():
    """A ratio of zeros hides no other weight that is beyond its limit."""
    log_variance = np.full(MANY, 1.0, "float32")
    log_variance[0, 0] = -200
    mean = np.full(MANY, 0.5, "float32")
    mean[0, 0] = 0
    found = keras.ops.convert_to_numpy(
        pointwise.limited_exp(
            keras.ops.convert_to_tensor(log_variance),
            keras.ops.convert_to_tensor(mean),
            0.0,
        )
    )
    np.testing.assert_allclose(found[1:], 0.25, rtol=1e-6)
    assert 0 <= found[0, 0] < 1e-37


@pytest.mark.parametrize("kl", ["polynomial", "exact"])
@pytest.mark.parametrize("beyond", [False, True], ids=["within", "beyond"])
def test_kl_of_many_weights(kl, beyond):
    log_alpha, _, _ = limited_variances(beyond)
    layer = keras_vdrop.VariationalDense(
        MANY[1], granularity="weight", kl=kl, num_examples=1, use_bias=False
    )
    layer.build((None, MANY[0]))
    layer.log_alpha.assign(log_alpha)
    function = getattr(keras_vdrop.divergence, kl)
    limited = np.minimum(log_alpha, 0)
    expected = keras.ops.convert_to_numpy(function(limited)).sum()
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)
    inputs = np.zeros((1, MANY[0]), "float32")
    *_, found = gradients(keras.ops.sum, layer, inputs)
    step = 1e-4
    ends = [
        keras.ops.convert_to_numpy(function(limited + sign * step))
        for sign in (1, -1)
    ]
    slope = (ends[0].astype("float64") - ends[1]) / (2 * step)
    slope = np.where(log_alpha > 0, 0, slope)
    np.testing.assert_allclose(found, slope, rtol=0.02, atol=0.02)


def descend(layer, x, steps, rate):
    """Gradient descent that knows nothing of Keras's constraints."""
    for _ in range(steps):
        _, _, *found = gradients(
            lambda y: keras.ops.mean(keras.ops.square(y)), layer, x
        )
        for variable, gradient in zip(
            layer.trainable_variables, found, strict=True
        ):
            variable.assign(variable.numpy() - rate * gradient)


every_speed = pytest.mark.parametrize("speed", [1, 32])


@every_speed
@every_posterior
def test_kl_does_not_run_away(posterior, speed):
    layer, x = build(
        "dense", **posterior, rate=0.45, num_examples=1, rate_speed=speed
    )
    descend(layer, np.zeros_like(x), 30, 0.2)
    assert np.max(layer.dropout_rates()) <= 0.5 + 1e-6
    # The polynomial is 0 at the limit, and would fall without end beyond it.
    assert layer.kl() >= -1e-4
    outputs = keras.ops.convert_to_numpy(layer(x, training=True))
    assert np.all(np.isfinite(outputs))


@every_speed
@every_posterior
def test_alpha_comes_back_from_beyond_its_limit(posterior, speed):
    layer, x = build(
        "dense", **posterior, use_bias=False, seed=1, rate_speed=speed
    )
    layer.set_num_examples(10**9)
    weight = layer.kernel_noise
    variable = weight.variable
    log_alpha = np.full(tuple(variable.shape), 1.0, "float32")
    variable.assign(
        weight.posterior.from_log_alpha(log_alpha, weight.mean_variable)
    )
    np.testing.assert_allclose(layer.dropout_rates(), 0.5, rtol=1e-6)
    before = keras.ops.convert_to_numpy(layer.log_alpha)
    rows = np.repeat(x, 2000, axis=0)
    # Noise costs: the expected gradient leads down, for every alpha.
    _, _, _, found = gradients(
        lambda y: keras.ops.sum(keras.ops.square(y)), layer, rows
    )
    assert np.all(found >= 0) and np.all(np.any(found > 0))
    variable.assign(variable.numpy() - 0.5 / speed * np.sign(found))
    assert np.all(keras.ops.convert_to_numpy(layer.log_alpha) <= before)


@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_torch_optimizers(noise):
    if keras.backend.backend() != "torch":
        pytest.skip("of torch alone")
    import torch

    layer = keras_vdrop.VariationalDense(
        10, rate=0.45, noise=noise, num_examples=1
    )
    layer.build((None, 8))
    optimizer = torch.optim.Adam(layer.parameters(), 0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = sum(layer.losses)
        loss.backward()
        optimizer.step()
    assert layer.dropout_rates() <= 0.5
    assert float(loss.detach()) >= 0
