"""Two products as one operation, against numpy and finite differences."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vdrop
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.moments import products
from keras_vdrop.core.posteriors import Variance

PER_WEIGHT = pytest.mark.parametrize("per_weight", [True, False])


def moments(linear, inputs, squares, kernel, log_alpha=None):
    variance = Variance(log_alpha=log_alpha)
    axes = Axes("... i, i o -> ... o", kernel.shape)
    return products(linear, inputs, squares, kernel, axes, variance)


def arguments(per_weight, batch=(4,), dtype="float64"):
    """With a row and a unit of zeros."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(*batch, 3))
    inputs[1] = 0
    kernel = generator.normal(size=(3, 5))
    kernel[:, 2] = 0
    values = [inputs, inputs**2, kernel]
    if per_weight:
        values.append(generator.uniform(-3, 0, size=(3, 5)))
    return [value.astype(dtype) for value in values]


@PER_WEIGHT
@pytest.mark.parametrize("batch", [(4,), (2, 3), (2, 0)])
def test_moments(per_weight, batch):
    values = arguments(per_weight, batch, "float32")
    inputs, squares, kernel = values[:3]
    variance = kernel**2 * (np.exp(values[3]) if per_weight else 1)
    tensors = map(ops.convert_to_tensor, values)
    mean, found = moments(ops.matmul, *tensors)
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(mean, inputs @ kernel, **close)
    np.testing.assert_allclose(found, squares @ variance, **close)


def torch_arguments(*args):
    if keras.backend.backend() != "torch":
        pytest.skip("The others differentiate the products themselves.")
    import torch

    return torch, [
        torch.tensor(value, requires_grad=True) for value in arguments(*args)
    ]


@PER_WEIGHT
@pytest.mark.parametrize("batch", [(4,), (2, 3)])
def test_torch_gradients_against_finite_differences(per_weight, batch):
    torch, tensors = torch_arguments(per_weight, batch)

    def function(*tensors):
        return tuple(moments(ops.matmul, *tensors))

    (shaped_from, _), *_ = function(*tensors)[0].grad_fn.next_functions
    assert "MatmulMoments" in shaped_from.name()
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@PER_WEIGHT
@pytest.mark.parametrize("learned", [[0], [1], [2], [-1], [0, 2], [1, -1]])
def test_torch_gradients_by_some_of_the_arguments(per_weight, learned):
    """As where a layer is the first, or its kernel or its noise is frozen."""
    torch, tensors = torch_arguments(per_weight)
    for tensor in tensors:
        tensor.requires_grad_(False)
    for number in learned:
        tensors[number].requires_grad_()
    before = [tensor.clone() for tensor in tensors]

    def gradients(linear):
        mean, variance = moments(linear, *tensors)
        loss = torch.sum(mean**3) + torch.sum(variance**2)
        wanted = [tensors[number] for number in learned]
        return torch.autograd.grad(loss, wanted)

    def matmul(inputs, kernel):
        return torch.matmul(inputs, kernel)  # Not in one operation.

    for found, expected in zip(
        gradients(ops.matmul), gradients(matmul), strict=True
    ):
        torch.testing.assert_close(found, expected)
    assert all(map(torch.equal, tensors, before))


@PER_WEIGHT
def test_torch_backward_twice(per_weight):
    torch, tensors = torch_arguments(per_weight)
    mean, variance = moments(ops.matmul, *tensors)
    loss = torch.sum(mean**2) + torch.sum(variance)
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    second = torch.autograd.grad(loss, tensors)
    assert all(map(torch.equal, first, second))


@PER_WEIGHT
def test_torch_function_transforms(per_weight):
    torch, tensors = torch_arguments(per_weight)

    def loss(row, square, *rest):
        mean, variance = moments(ops.matmul, row[None], square[None], *rest)
        return torch.sum(mean**2) + torch.sum(variance)

    each = torch.func.vmap(
        torch.func.grad(loss, argnums=2), (0, 0) + (None,) * len(tensors[2:])
    )(*tensors)
    for row, found in enumerate(each):
        one = loss(tensors[0][row], tensors[1][row], *tensors[2:])
        (expected,) = torch.autograd.grad(one, [tensors[2]])
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("granularity", ["layer", "weight"])
def test_torch_autocast(granularity):
    torch, _ = torch_arguments(True)
    layer = keras_vdrop.VariationalDense(
        3, granularity=granularity, num_examples=9
    )
    layer.build((None, 4))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = layer(np.ones((2, 4), "float32"), training=True)
    outputs.sum().backward()
    assert torch.isfinite(layer.kernel.value.grad).all()


def test_a_subclass_with_a_linear_map_of_its_own():
    class Doubled(keras_vdrop.VariationalDense):
        def linear(self, inputs, kernel):
            return 2 * ops.matmul(inputs, kernel)

    # Noise of deviation sqrt(2 * sum(1e-6 * kernel**2)), less than 0.003.
    layer = Doubled(3, use_bias=False, adaptive=False, rate=1e-6)
    x = np.ones((2, 4), "float32")
    outputs = ops.convert_to_numpy(layer(x, training=True))
    kernel = ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(outputs, 2 * x @ kernel, rtol=0, atol=0.015)
