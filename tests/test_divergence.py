"""Reference: quadrature of E[log|epsilon|], epsilon ~ N(1, alpha)."""

import keras
import numpy as np
import pytest
from backends import gradients
from backends import run_python
from scipy import integrate
from scipy import stats

import keras_vdrop
from keras_vdrop import divergence

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
        kl=function, granularity="input", num_examples=1
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


@pytest.mark.parametrize("function", divergence.BUILT_IN.values())
def test_zero_at_one_and_positive_below(function):
    assert float(function(np.zeros(()))) == 0
    values = keras.ops.convert_to_numpy(function(np.linspace(-20, -1e-6, 999)))
    assert np.all(values > 0) and np.all(np.diff(values) < 0)


def test_get():
    assert divergence.get("polynomial") is divergence.polynomial
    assert divergence.get(divergence.lower_bound) is divergence.lower_bound
    for bad in ("polynom", None, 3):
        with pytest.raises(ValueError, match="argument `kl`.*polynomial"):
            divergence.get(bad)


REGISTERED = """
import sys
import keras
import keras_vdrop

@keras.saving.register_keras_serializable(package="mine")
def squared(log_alpha):
    return keras.ops.square(log_alpha)

_, do, path = sys.argv
if do == "save":
    model = keras.Sequential([
        keras.Input((2,)),
        keras_vdrop.VariationalDense(3, kl=squared, max_alpha=None),
        keras_vdrop.VariationalDense(2, kl="mine>squared", rate=0.2),
    ])
    keras_vdrop.set_num_examples(model, 6)
    model.save(path)
else:
    model = keras.models.load_model(path)
assert all(layer.kl is squared for layer in model.layers)
print(*(float(loss) for loss in model.losses))
"""


def test_own_registered_function_survives_a_file(tmp_path):
    path = tmp_path / "model.keras"
    run_python(REGISTERED, "save", path)
    losses = [float(x) for x in run_python(REGISTERED, "load", path).split()]
    np.testing.assert_allclose(losses, [0, np.log(0.25) ** 2], rtol=1e-6)
