"""Derivatives in forward mode, and those of `vmap`, on torch."""

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.core import divergence
from keras_vdrop.core import pointwise
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.moments import products
from keras_vdrop.core.posteriors import Variance

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="The functions are those of torch.",
)

# Of two arguments, the second one as a mean of weights.
POINTWISE = {
    "square": lambda x, y: pointwise.square(x),
    "log_square": lambda x, y: pointwise.log_square(y),
    "log_ratio": pointwise.log_ratio,
    "one_way_limit": lambda x, y: pointwise.one_way_limit(x, limit=3.0),
    "weight_variance": pointwise.weight_variance,
    "deviation": lambda x, y: pointwise.deviation(x * x, 0 * x.detach() + 2),
    "exact": lambda x, y: divergence.exact(x),
    "polynomial": lambda x, y: divergence.polynomial(x),
}
KINDS = {
    "correlated": {"noise": "correlated", "rate_speed": 1},
    "layer": {"noise": "independent"},
    "weight": {"noise": "independent", "granularity": "weight", "kl": "exact"},
    "additive": {
        "noise": "independent",
        "parameterization": "additive",
        "granularity": "weight",
    },
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_functions_against_finite_differences(name):
    import torch

    generator = np.random.default_rng(0)
    x, y = (
        torch.tensor(generator.uniform(0.5, 2, (3, 2)), requires_grad=True)
        for _ in range(2)
    )

    def function(x, y):
        return POINTWISE[name](x, y)

    assert torch.autograd.gradcheck(
        function,
        (x, y),
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )


@pytest.mark.parametrize("per_weight", [True, False])
def test_products_against_finite_differences(per_weight):
    import torch
    from keras import ops

    generator = np.random.default_rng(0)
    shapes = [(4, 3), (4, 3), (3, 5)] + per_weight * [(3, 5)]
    tensors = [
        torch.tensor(generator.normal(size=shape), requires_grad=True)
        for shape in shapes
    ]

    def function(inputs, squares, kernel, log_alpha=None):
        variance = Variance(log_alpha=log_alpha, limit=10.0)
        axes = Axes("... i, i o -> ... o", kernel.shape)
        return tuple(
            products(ops.matmul, inputs, squares, kernel, axes, variance)
        )

    assert torch.autograd.gradcheck(function, tensors, check_forward_ad=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variable", ["kernel", "noise"])
def test_hessian_of_a_training_step(kind, variable):
    import torch
    from torch.func import jacfwd
    from torch.func import jacrev

    keras.utils.set_random_seed(0)
    layer = keras_vdrop.VariationalDense(
        3, seed=1, num_examples=10, dtype="float64", **KINDS[kind]
    )
    layer.build((None, 2))
    x = torch.tensor(np.random.default_rng(0).normal(size=(4, 2)))
    trained = [v.value.detach() for v in layer.trainable_variables]
    others = [v.value.detach() for v in layer.non_trainable_variables]
    index = {"kernel": 0, "noise": 2}[variable]

    def loss(value):
        values = [*trained[:index], value, *trained[index + 1 :]]
        outputs, _, losses = layer.stateless_call(
            values, others, x, training=True, return_losses=True
        )
        return (outputs**3).sum() + sum(losses)

    at = trained[index]
    # Type A and additive noise have steps in float32, as Keras chooses dtypes.
    close = {"rtol": 1e-5, "atol": 1e-6}
    slope = jacfwd(loss, randomness="same")(at)
    torch.testing.assert_close(slope, jacrev(loss)(at), **close)
    hessian = jacfwd(jacrev(loss), randomness="same")(at)
    torch.testing.assert_close(hessian, jacrev(jacrev(loss))(at), **close)
    step = 1e-2 * torch.ones_like(at)
    ahead, behind = jacrev(loss)(at + step), jacrev(loss)(at - step)
    found = torch.tensordot(hessian, 2 * step, dims=at.ndim)
    torch.testing.assert_close(found, ahead - behind, rtol=1e-2, atol=1e-3)
