"""References: quadrature of E[log|epsilon|], epsilon ~ N(1, alpha), and the
hypergeometric and Dawson functions of mpmath and scipy."""

import functools

import exact_fit
import keras
import mpmath
import numpy as np
import pytest
from backends import gradients
from scipy import integrate
from scipy import special
from scipy import stats

import keras_vdrop
from keras_vdrop.core import divergence
from keras_vdrop.core import exact_divergence
from keras_vdrop.core.priors import DIVERGENCES

# What docs/theory.md says of Molchanov's approximation.
SIGMOID_ERROR = 0.01
LOG_ALPHA = np.linspace(np.log(0.01), 0, 41)


def expected_log_noise(alpha):
    def integrand(z):
        return np.log(abs(1 + np.sqrt(alpha) * z)) * stats.norm.pdf(z)

    pole = -1 / np.sqrt(alpha)
    points = [pole] if abs(pole) < 12 else None
    return integrate.quad(
        integrand, -12, 12, points=points, limit=500, epsabs=1e-10
    )[0]


def by_quadrature(log_alpha):
    """The paper's appendix C, with the constant that gives 0 at alpha = 1."""
    at_one = expected_log_noise(1.0)
    return np.array(
        [-x / 2 + expected_log_noise(np.exp(x)) - at_one for x in log_alpha]
    )


def slopes(function, log_alpha):
    layer = keras_vdrop.VariationalDropout(
        kl=getattr(divergence, function),
        granularity="input",
        adaptive=True,
        max_alpha=getattr(getattr(divergence, function), "max_alpha", None),
        num_examples=1,
        rate_speed=1,
    )
    layer.build((None, len(log_alpha)))
    layer.log_alpha.assign(log_alpha)
    zeros = np.zeros((1, len(log_alpha)), "float32")
    return gradients(keras.ops.sum, layer, zeros)[2]


def test_polynomial_is_near_the_exact_divergence():
    found = keras.ops.convert_to_numpy(divergence.polynomial(LOG_ALPHA))
    error = np.abs(found - by_quadrature(LOG_ALPHA))
    # What the cubic is worth: docs/theory.md.
    assert error.max() < 0.0309
    assert error[np.exp(LOG_ALPHA) >= 0.05].max() < 0.0102


def test_polynomial_slope_is_near_the_exact_one():
    step = 1e-3
    inside = LOG_ALPHA[1:-1]
    exact = by_quadrature(inside + step) - by_quadrature(inside - step)
    found = slopes("polynomial", inside)
    np.testing.assert_allclose(found, exact / (2 * step), rtol=0.15)


def test_polynomial_has_the_coefficients_of_the_paper():
    alpha = np.exp(LOG_ALPHA)
    cubic = [0.58629921, -1.50204118, 1.16145124, 0]
    found = keras.ops.convert_to_numpy(divergence.polynomial(LOG_ALPHA))
    value = -np.polyval(cubic, alpha) - LOG_ALPHA / 2 + sum(cubic)
    np.testing.assert_allclose(found, value, atol=2e-6)
    slope = -np.polyval(np.polyder(cubic), alpha) * alpha - 0.5
    np.testing.assert_allclose(
        slopes("polynomial", LOG_ALPHA), slope, rtol=1e-5
    )


def test_lower_bound():
    found = keras.ops.convert_to_numpy(divergence.lower_bound(LOG_ALPHA))
    np.testing.assert_allclose(found, -LOG_ALPHA / 2, rtol=1e-6)
    np.testing.assert_allclose(slopes("lower_bound", LOG_ALPHA), -0.5)
    # It bounds -KL from below, with the constant they share at alpha = 0.
    above = found - (by_quadrature(LOG_ALPHA) + expected_log_noise(1.0))
    assert np.all(above > 0) and above[0] < 0.006


@pytest.mark.parametrize("name", ["polynomial", "lower_bound"])
def test_zero_at_one_and_positive_below(name):
    function = getattr(divergence, name)
    assert float(function(np.zeros(()))) == 0
    values = keras.ops.convert_to_numpy(function(np.linspace(-20, -1e-6, 999)))
    assert np.all(values > 0) and np.all(np.diff(values) < 0)


@pytest.mark.parametrize("name", ["exact", "sigmoid", "ard"])
def test_falls_to_zero_for_every_alpha(name):
    function = getattr(divergence, name)
    values = keras.ops.convert_to_numpy(function(np.linspace(-30, 30, 999)))
    assert np.all(values > 0) and np.all(np.diff(values) < 0)
    # As alpha goes to 0, KL + log(alpha) / 2 goes to a constant.
    far = keras.ops.convert_to_numpy(function(np.array([-80.0, -400.0, 400.0])))
    np.testing.assert_allclose(far[1] - far[0], 160, rtol=1e-6)
    assert 0 <= far[2] < 1e-30


def hypergeometric(log_alpha):
    t = mpmath.exp(-mpmath.mpf(float(log_alpha))) / 2
    return t * mpmath.hyp2f2(1, 1, mpmath.mpf(3) / 2, 2, -t)


def dawson_slope(log_alpha):
    u = np.sqrt(np.exp(-np.asarray(log_alpha, "float64")) / 2)
    return -u * special.dawsn(u)


def random_points(dtype):
    generator = np.random.default_rng(2)
    return np.sort(generator.uniform(-20, 20, 300)).astype(dtype)


@functools.cache
def exact_by_mpmath(dtype):
    return np.array([float(hypergeometric(x)) for x in random_points(dtype)])


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 5.1e-7), ("float64", 1e-10)]
)
def test_exact_value(dtype, tolerance):
    points = keras.ops.convert_to_tensor(random_points(dtype), dtype)
    if keras.backend.standardize_dtype(points.dtype) != dtype:
        pytest.skip("needs a flag of the process: test_float64_on_jax")
    found = keras.ops.convert_to_numpy(divergence.exact(points))
    expected = exact_by_mpmath(dtype)
    error = np.abs(found - expected) / np.maximum(1, expected)
    assert error.max() < tolerance


def test_exact_slope():
    points = random_points("float32")
    expected = dawson_slope(points)
    np.testing.assert_allclose(slopes("exact", points), expected, rtol=6.4e-6)


def test_exact_is_smooth():
    points = np.linspace(-20, 20, 4001)
    slope = slopes("exact", points)
    u = np.sqrt(np.exp(-points) / 2)
    dawson = special.dawsn(u)
    curvature = u / 2 * (dawson + u * (1 - 2 * u * dawson))
    step = points[1] - points[0]
    found = np.gradient(slope, step)
    # Of float32 slopes: rounding over a step of 0.01, and the differences.
    np.testing.assert_allclose(found, curvature, atol=1e-4)


def test_exact_is_what_the_paper_integrates():
    points = np.linspace(-6, 3, 19)
    found = keras.ops.convert_to_numpy(divergence.exact(points))
    at_one = float(divergence.exact(np.zeros(())))
    np.testing.assert_allclose(found - at_one, by_quadrature(points), atol=1e-6)


def test_exact_has_the_coefficients_of_its_fit():
    """The fit of float32 depends on rounding, its errors hardly do."""
    expected = exact_fit.coefficients(exact_divergence.SHIFT)
    for name, powers in expected.items():
        found = getattr(exact_divergence, name)
        # At the largest z, which is 1/2.
        sizes = 0.5 ** np.arange(len(powers))
        tolerance = 1e-9 if "64" in name else 1e-4
        np.testing.assert_allclose(
            found * sizes, powers * sizes, atol=tolerance
        )


def test_sigmoid_is_near_the_exact_divergence():
    points = random_points("float32")
    found = keras.ops.convert_to_numpy(divergence.sigmoid(points))
    assert np.abs(found - exact_by_mpmath("float32")).max() < SIGMOID_ERROR
    # The formula of the paper, which is of -KL.
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    x = points.astype("float64")
    negative = k1 * special.expit(k2 + k3 * x) - 0.5 * np.log1p(np.exp(-x)) - k1
    np.testing.assert_allclose(found, -negative, rtol=1e-5, atol=1e-6)


def test_ard():
    points = random_points("float32")
    found = keras.ops.convert_to_numpy(divergence.ard(points))
    alpha = np.exp(points.astype("float64"))
    np.testing.assert_allclose(found, np.log1p(1 / alpha) / 2, rtol=1e-5)
    # KL of N(1, alpha) from N(0, 1 + alpha), the normal prior that fits best.
    kl = (np.log((1 + alpha) / alpha) + (alpha + 1) / (1 + alpha) - 1) / 2
    np.testing.assert_allclose(found, kl, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("function", DIVERGENCES.values())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(function, dtype):
    points = keras.ops.convert_to_tensor([-9.0, -1.0], dtype)
    found = function(points)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    expected = function(np.array([-9.0, -1.0], "float32"))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(found), keras.ops.convert_to_numpy(expected)
    )
