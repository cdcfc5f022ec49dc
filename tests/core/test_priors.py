"""Priors: the normal prior against quadrature, names, and files."""

import keras
import numpy as np
import pytest
from backends import gradients
from backends import run_python
from cases import alpha_of_weights
from cases import build
from cases import every_kernel_layer
from scipy import integrate
from scipy import stats

import keras_vdrop
from keras_vdrop import priors


def normal_kl(mean, std, scale):
    """By quadrature."""
    q, p = stats.norm(mean, std), stats.norm(0, scale)
    return integrate.quad(
        lambda w: q.pdf(w) * (q.logpdf(w) - p.logpdf(w)),
        mean - 12 * std,
        mean + 12 * std,
    )[0]


NORMAL_POSTERIORS = {
    "layer": {},
    "input": {"granularity": "input"},
    "output": {"granularity": "output"},
    "weight": {"granularity": "weight"},
    "additive": {"granularity": "weight", "parameterization": "additive"},
}


@every_kernel_layer
@pytest.mark.parametrize(
    "posterior", NORMAL_POSTERIORS.values(), ids=NORMAL_POSTERIORS
)
def test_normal(case, posterior):
    if case != "dense" and posterior.get("granularity") == "weight":
        pytest.skip("alpha of a weight needs no axes")
    layer, _ = build(
        case, **posterior, kl=priors.Normal(scale=0.3), max_alpha=None
    )
    kernel = keras.ops.convert_to_numpy(layer.kernel).astype("float64")
    std = np.sqrt(alpha_of_weights(layer)) * np.abs(kernel)
    expected = sum(
        normal_kl(*moments, 0.3)
        for moments in zip(kernel.ravel(), std.ravel(), strict=True)
    )
    np.testing.assert_allclose(layer.kl(), expected, rtol=2e-5)


def test_gradient_of_the_normal_prior():
    """Mean and variance both have one, as in closed form."""
    layer, inputs = build(
        "dense",
        granularity="weight",
        parameterization="additive",
        kl=priors.Normal(0.5),
        max_alpha=None,
        use_bias=False,
    )
    kernel = layer.kernel.numpy()
    variance = np.exp(layer.log_variance.numpy())
    *_, by_kernel, by_log_variance = gradients(
        keras.ops.sum, layer, np.zeros_like(inputs)
    )
    np.testing.assert_allclose(by_kernel, kernel / 0.25 / 10, rtol=1e-5)
    np.testing.assert_allclose(
        by_log_variance, (variance / 0.25 - 1) / 2 / 10, rtol=1e-4
    )


@pytest.mark.parametrize("parameterization", ["multiplicative", "additive"])
def test_normal_prior_of_zero_weights_is_finite(parameterization):
    layer, inputs = build(
        "dense",
        granularity="weight",
        parameterization=parameterization,
        kl="normal",
        kernel_initializer="zeros",
    )
    for value in gradients(keras.ops.mean, layer, inputs):
        assert np.all(np.isfinite(value))


def test_a_prior_of_ones_own():
    """KL from a Laplace prior, by one class, which needs mean and variance."""

    class Quadratic(priors.Prior):
        def kl(self, posterior):
            second = keras.ops.square(posterior.mean()) + keras.ops.exp(
                posterior.log_variance()
            )
            return keras.ops.sum(second)

    layer, _ = build("dense", kl=Quadratic())
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    expected = np.sum(kernel**2 * (1 + alpha_of_weights(layer)))
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)


def test_get():
    assert priors.get("normal") == priors.Normal(1.0)
    assert priors.get("polynomial").divergence is (
        keras_vdrop.divergence.polynomial
    )
    prior = priors.Normal(0.1)
    assert priors.get(prior) is prior
    for bad in ("polynom", None, 3, priors.Normal):
        with pytest.raises(ValueError, match="argument `kl`.*polynomial"):
            priors.get(bad)
    with pytest.raises(ValueError, match="argument `scale`"):
        priors.Normal(0)


def test_normal_prior_survives_a_file(tmp_path):
    layer = keras_vdrop.VariationalDense(3, kl=priors.Normal(0.1))
    model = keras.Sequential([keras.Input((2,)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.layers[0].prior == priors.Normal(0.1)
    assert again.layers[0].kl() == layer.kl()


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
        keras_vdrop.VariationalDense(
            3, kl=squared, rate=0.5, max_alpha=None
        ),
        keras_vdrop.VariationalDense(2, kl="mine>squared", rate=0.2),
    ])
    keras_vdrop.set_num_examples(model, 6)
    model.save(path)
else:
    model = keras.models.load_model(path)
assert all(layer.prior.divergence is squared for layer in model.layers)
print(*(float(loss) for loss in model.losses))
"""


def test_own_registered_function_survives_a_file(tmp_path):
    path = tmp_path / "model.keras"
    run_python(REGISTERED, "save", path)
    losses = [float(x) for x in run_python(REGISTERED, "load", path).split()]
    # Type A: three inputs of the second layer.
    expected = [0, 3 * np.log(0.25) ** 2 / 6]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
