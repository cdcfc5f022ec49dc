"""Layers under `torch.compile`: the same results, and few breaks."""

import keras
import pytest

import keras_vdrop

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="The compiler is that of torch."
)

ADDITIVE = {"granularity": "weight", "parameterization": "additive"}
KINDS = [
    pytest.param({"noise": "correlated"}, marks=pytest.mark.slow),
    {"noise": "independent"},
    pytest.param({"granularity": "weight"}, marks=pytest.mark.slow),
    pytest.param(ADDITIVE, marks=pytest.mark.slow),
]


def ids(kind):
    return " ".join(kind.values()) if isinstance(kind, dict) else None


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_compiled_layer(kind):
    import torch

    layer = keras_vdrop.VariationalDense(3, seed=0, num_examples=10, **kind)
    layer.build((None, 4))
    start = layer.get_weights()
    x = torch.linspace(-1, 1, 20).reshape(5, 4)

    def step(x):
        outputs = layer(x, training=True)
        return (outputs**2).sum() + sum(layer.losses)

    def run(function):
        layer.set_weights(start)
        layer.zero_grad()
        loss = function(x)
        loss.backward()
        return loss, [v.value.grad.clone() for v in layer.trainable_variables]

    expected = run(step)
    torch.compiler.reset()
    found = run(torch.compile(step, backend="aot_eager"))
    torch.testing.assert_close(found, expected)


def breaks(layer, x):
    import torch

    def call(x):
        return layer(x, training=True), layer.losses

    call(x)
    torch.compiler.reset()
    return torch._dynamo.explain(call)(x).graph_break_count


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["layer", "weight"])
def test_one_break_more_than_layers_of_keras_with_noise(granularity):
    import torch

    x = torch.ones(5, 4)
    ours = keras_vdrop.VariationalDense(
        3, num_examples=10, noise="independent", granularity=granularity
    )
    keras_layer = keras.Sequential(
        [keras.layers.GaussianDropout(0.2), keras.layers.Dense(3)]
    )
    assert breaks(ours, x) <= breaks(keras_layer, x) + 1
