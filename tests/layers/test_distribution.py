"""The noise has the distribution of the paper, on every layer."""

import keras
import numpy as np
import pytest
from cases import alpha_of_weights
from cases import build
from cases import draw
from cases import every_kernel_layer
from cases import every_layer_and_posterior
from cases import every_posterior
from cases import moments

import keras_vdrop

DRAWS = 20_000
# Standard errors that the largest of a few hundred deviations stays within.
SIGMAS = 5


@every_layer_and_posterior
def test_mean_and_variance(case, posterior):
    layer, inputs = build(case, **posterior, seed=1)
    samples = draw(layer, inputs, DRAWS)
    mean, variance = moments(layer, inputs)
    error = np.sqrt(variance / DRAWS)
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - mean), SIGMAS * error + 1e-5
    )
    error = variance * np.sqrt(2 / DRAWS)
    np.testing.assert_array_less(
        np.abs(samples.var(0) - variance), SIGMAS * error + 1e-5
    )


@every_kernel_layer
def test_independent_noise_is_independent_everywhere(case):
    layer, inputs = build(case, granularity="weight", seed=1)
    inputs = np.abs(inputs) + 0.1  # no output without variance
    samples = draw(layer, inputs, DRAWS).reshape(DRAWS, -1)
    correlation = np.corrcoef(samples, rowvar=False)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < SIGMAS / np.sqrt(DRAWS)


def test_correlated_noise_has_the_covariance_of_its_inputs():
    layer, inputs = build(
        "dense", noise="correlated", granularity="input", seed=1
    )
    samples = draw(layer, inputs, DRAWS)
    theta = keras.ops.convert_to_numpy(layer.kernel)
    alpha = np.exp(keras.ops.convert_to_numpy(layer.log_alpha))
    for example, row in zip(samples.swapaxes(0, 1), inputs, strict=True):
        expected = theta.T @ np.diag(alpha * row**2) @ theta
        found = np.cov(example, rowvar=False)
        spread = np.diag(expected)
        error = np.sqrt((np.outer(spread, spread) + expected**2) / DRAWS)
        np.testing.assert_array_less(
            np.abs(found - expected), SIGMAS * error + 1e-6
        )
    first, second = samples[:, 0], samples[:, 1]
    between = np.corrcoef(first, second, rowvar=False)[:4, 4:]
    assert np.abs(between).max() < SIGMAS / np.sqrt(DRAWS)


def test_correlated_convolution_draws_noise_for_each_position():
    # A 1x1 kernel of ones makes the noise of one channel visible.
    layer = keras_vdrop.VariationalConv2D(
        1,
        1,
        noise="correlated",
        kernel_initializer="ones",
        data_format="channels_last",
        seed=1,
    )
    noise = draw(layer, np.ones((1, 2, 2, 1), "float32"), DRAWS) - 1
    correlation = np.corrcoef(noise.reshape(DRAWS, 4), rowvar=False)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < SIGMAS / np.sqrt(DRAWS)


@pytest.mark.parametrize("granularity", ["layer", "input"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_dropout_layer(granularity, axis):
    layer = keras_vdrop.VariationalDropout(
        granularity=granularity, axis=axis, seed=1
    )
    inputs = np.arange(1, 13, dtype="float32").reshape(1, 2, 3, 2)
    layer.build(inputs.shape)
    layer.log_alpha.assign(
        np.random.default_rng(0).uniform(-2, 0, tuple(layer.log_alpha.shape))
    )
    alpha = np.exp(keras.ops.convert_to_numpy(layer.log_alpha))
    if axis == 1 and granularity == "input":
        alpha = alpha[:, None, None]
    variance = np.broadcast_to(alpha * inputs**2, inputs.shape)[0]
    samples = draw(layer, inputs, DRAWS)[:, 0]
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - inputs[0]),
        SIGMAS * np.sqrt(variance / DRAWS),
    )
    np.testing.assert_array_less(
        np.abs(samples.var(0) - variance),
        SIGMAS * variance * np.sqrt(2 / DRAWS),
    )
    correlation = np.corrcoef(samples.reshape(DRAWS, -1), rowvar=False)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < SIGMAS / np.sqrt(DRAWS)


def test_fixed_rate_is_gaussian_dropout():
    layer = keras_vdrop.VariationalDropout(0.2, adaptive=False, seed=1)
    plain = keras.layers.GaussianDropout(0.2, seed=1)
    ones = np.ones((DRAWS, 3), "float32")
    for drawn in (layer(ones, training=True), plain(ones, training=True)):
        drawn = keras.ops.convert_to_numpy(drawn)
        assert abs(drawn.mean() - 1) < SIGMAS * 0.5 / np.sqrt(drawn.size)
        assert abs(drawn.var() - 0.25) < SIGMAS * 0.25 * np.sqrt(2 / drawn.size)
    assert layer.losses == [] and layer.trainable_variables == []


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_variance_in_half_precision(dtype, noise):
    layer, inputs = build("dense", noise=noise, dtype=dtype, seed=1)
    samples = draw(layer, inputs, DRAWS).astype("float64")
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    variance = (inputs**2) @ (alpha_of_weights(layer) * kernel**2)
    # Rounding of inputs, weights and outputs to 8 bits of mantissa at worst.
    rounding = 4 * 2**-8
    assert np.all(
        np.abs(samples.var(0) / variance - 1)
        < SIGMAS * np.sqrt(2 / DRAWS) + rounding
    )


@pytest.mark.parametrize("case", ["dense", "conv2d_strides"])
@every_posterior
def test_seeds(case, posterior):
    def outputs(seed, calls=2):
        keras.utils.set_random_seed(7)
        layer, inputs = build(case, **posterior, seed=seed)
        drawn = [layer(inputs, training=True) for _ in range(calls)]
        return [keras.ops.convert_to_numpy(x) for x in drawn]

    first, again, neighbour = outputs(1), outputs(1), outputs(2)
    np.testing.assert_array_equal(first, again)
    assert not np.any(first[0] == first[1])
    assert not np.any(first[0] == neighbour[0])
    # Keras on torch adds the seed to the number of draws.
    assert not np.any(first[1] == neighbour[0])
