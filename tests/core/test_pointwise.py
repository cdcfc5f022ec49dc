"""Gradients of our own, against closed forms and finite differences."""

import keras
import numpy as np
import pytest
from backends import derivatives
from backends import gradients
from scipy import special

import keras_vdrop
from keras_vdrop import backend
from keras_vdrop.core import divergence
from keras_vdrop.core import pointwise

C1, C2, C3 = 1.16145124, -1.50204118, 0.58629921


def values(*ranges):
    generator = np.random.default_rng(0)
    return [generator.uniform(*range, size=(4, 5)) for range in ranges]


def check(found, expected):
    first, second = found
    expected_first, expected_second = expected
    close = {"rtol": 2e-5, "atol": 1e-5}
    for x, y in zip(first, expected_first, strict=True):
        np.testing.assert_allclose(x, y, **close)
    for row, expected_row in zip(second, expected_second, strict=True):
        for x, y in zip(row, expected_row, strict=True):
            np.testing.assert_allclose(x, np.broadcast_to(y, x.shape), **close)


def test_square():
    (x,) = values((-2, 2))
    check(derivatives(pointwise.square, x), ([2 * x], [[2.0]]))


def test_log_square():
    (x,) = values((0.5, 2))
    x[0] *= -1
    check(derivatives(pointwise.log_square, x), ([2 / x], [[-2 / x**2]]))


def test_log_square_of_nearly_nothing():
    x = np.array([0, 1e-30, -1e-30])
    found = pointwise.log_square(keras.ops.convert_to_tensor(x, "float32"))
    np.testing.assert_allclose(found, np.log(1.17549435e-38), rtol=1e-6)
    (slope,), _ = derivatives(pointwise.log_square, x)
    assert slope[0] == 0 and np.all(np.isfinite(slope))


def test_weight_variance():
    log_alpha, kernel = values((-3, 0), (-2, 2))
    alpha = np.exp(log_alpha)
    variance = alpha * kernel**2
    cross = 2 * alpha * kernel
    found = pointwise.weight_variance(
        *(
            keras.ops.convert_to_tensor(x, "float32")
            for x in (log_alpha, kernel)
        )
    )
    np.testing.assert_allclose(found, variance, rtol=1e-5)
    check(
        derivatives(pointwise.weight_variance, log_alpha, kernel),
        ([variance, cross], [[variance, cross], [cross, 2 * alpha]]),
    )


def test_deviation():
    variance, noise = values((0.5, 3), (-2, 2))

    def function(variance):
        tensor = keras.ops.convert_to_tensor(noise, "float32")
        return pointwise.deviation(variance, tensor)

    check(
        derivatives(function, variance),
        ([noise / 2 / np.sqrt(variance)], [[-noise / 4 * variance**-1.5]]),
    )


@pytest.mark.parametrize("shape", [(), (7,), (300, 200), (3, 3, 20, 40)])
def test_total(shape):
    x = np.random.default_rng(0).uniform(1, 2, size=shape).astype("float32")
    found = backend.total(keras.ops.convert_to_tensor(x))
    # The rounding errors of up to 60,000 terms: 6e-8 times their root.
    np.testing.assert_allclose(found, np.sum(x, dtype="float64"), rtol=1.5e-5)
    found = derivatives(lambda x: backend.total(x * x), x)
    check(found, ([2 * x], [[2.0]]))


def test_polynomial():
    (log_alpha,) = values((-3, 0))
    a = np.exp(log_alpha)
    slope = -0.5 - C1 * a - 2 * C2 * a**2 - 3 * C3 * a**3
    curvature = -C1 * a - 4 * C2 * a**2 - 9 * C3 * a**3
    check(
        derivatives(divergence.polynomial, log_alpha),
        ([slope], [[curvature]]),
    )


def test_exact():
    (log_alpha,) = values((-3, 3))
    u = np.sqrt(np.exp(-log_alpha) / 2)
    dawson = special.dawsn(u)
    curvature = u / 2 * (dawson + u * (1 - 2 * u * dawson))
    first, second = derivatives(divergence.exact, log_alpha)
    np.testing.assert_allclose(first[0], -u * dawson, rtol=6.4e-6)
    # The derivative of a polynomial of degree 12 that is right to 6.4e-6.
    np.testing.assert_allclose(second[0][0], curvature, atol=12 * 6.4e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: pointwise.square(x),
        lambda x, y: pointwise.log_square(x),
        pointwise.weight_variance,
        pointwise.deviation,
        lambda x, y: divergence.polynomial(x),
        lambda x, y: divergence.exact(x),
    ],
)
def test_torch_leaves_what_it_is_given_alone(function):
    """It works in place, forward and backward."""
    if keras.backend.backend() != "torch":
        pytest.skip("The others do not work in place.")
    import torch

    x, y, upstream = (
        torch.tensor(value, dtype=torch.float32)
        for value in values((-2, -1), (1, 2), (1, 2))
    )
    given = [x, y, upstream]
    before = [tensor.clone() for tensor in given]
    function(x.requires_grad_(), y.requires_grad_()).backward(upstream)
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize(
    "posterior",
    [
        {"granularity": "weight"},
        {"granularity": "output"},
        {"granularity": "input"},
        {
            "granularity": "weight",
            "parameterization": "additive",
            "kl": "exact",
            "max_alpha": None,
        },
    ],
)
def test_layer_against_finite_differences(posterior):
    """With a row of zeros and a unit of zeros, for which nothing is NaN."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(6, 3)).astype("float32")
    x[2] = 0
    layer = keras_vdrop.VariationalDense(
        4, num_examples=20, rate=0.3, use_bias=False, **posterior
    )
    layer.build((None, 3))
    kernel = generator.normal(size=(3, 4))
    kernel[:, 1] = 0
    layer.kernel.assign(kernel)
    state = layer.random_weights[0].seed_state.numpy()
    weights = generator.normal(size=(6, 4))
    weights = keras.ops.convert_to_tensor(weights, "float32")

    def run():
        # The same noise each time.
        layer.random_weights[0].seed_state.assign(state)
        return gradients(
            lambda outputs: keras.ops.sum(outputs * weights), layer, x
        )

    _, by_inputs, *by_variables = run()
    assert np.all(np.isfinite(by_inputs))
    for variable, found in zip(
        layer.trainable_variables, by_variables, strict=True
    ):
        assert np.all(np.isfinite(found))
        start = keras.ops.convert_to_numpy(variable).copy()
        for index in np.ndindex(start.shape):
            if variable is layer.kernel and start[index] == 0:
                continue  # The deviation has a kink there.
            ends = []
            for step in (1e-2, -1e-2):
                moved = start.copy()
                moved[index] += step
                variable.assign(moved)
                ends.append(run()[0])
            variable.assign(start)
            slope = (ends[0] - ends[1]) / 2e-2
            np.testing.assert_allclose(
                found[index], slope, rtol=0.02, atol=5e-3, err_msg=index
            )


def test_torch_keeps_four_times_what_dense_keeps():
    """Of memory for the backward pass, with an alpha for each weight."""
    if keras.backend.backend() != "torch":
        pytest.skip("Only torch tells what it keeps.")
    import torch

    def kept(layer):
        layer.build((None, 1024))
        x = torch.ones(128, 1024, requires_grad=True)
        storages = {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            outputs = layer(x, training=True)
            loss = outputs.sum() + sum(layer.losses)
        loss.backward()
        return sum(storages.values())

    dense = kept(keras.layers.Dense(1024))
    weight = keras_vdrop.VariationalDense(
        1024, granularity="weight", num_examples=100
    )
    assert kept(weight) < 4.2 * dense


def test_torch_function_transforms():
    if keras.backend.backend() != "torch":
        pytest.skip("jax has them, and tensorflow has none.")
    import torch

    x = torch.linspace(-2, 0, 5)
    slopes = torch.func.vmap(torch.func.grad(divergence.polynomial))(x)
    expected = derivatives(divergence.polynomial, x.numpy())[0][0]
    np.testing.assert_allclose(slopes, expected, rtol=1e-5)


def test_jax_forward_mode():
    if keras.backend.backend() != "jax":
        pytest.skip("of jax")
    import jax

    x = np.linspace(-2, 0, 5, dtype="float32")
    _, slopes = jax.jvp(divergence.polynomial, (x,), (np.ones_like(x),))
    expected = derivatives(divergence.polynomial, x)[0][0]
    np.testing.assert_allclose(slopes, expected, rtol=1e-5)
