"""Layers under `torch.compile`: the same results, and no breaks."""

import keras
import numpy as np
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


@pytest.fixture
def recording(monkeypatch):
    """Eager layers draw what compiled layers draw."""
    from keras_vdrop.backend import torch_random

    monkeypatch.setattr(torch_random, "is_recording", lambda tensor: True)


def compiled(function):
    import torch

    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_compiled_layer(kind, recording):
    """Without a break: the same outputs, KL and gradients, step by step."""
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
        losses = [function(x) for _ in range(3)]
        losses[-1].backward()
        gradients = [v.value.grad.clone() for v in layer.trainable_variables]
        return losses, gradients, layer.get_weights()

    expected = run(step)
    found = run(compiled(step))
    torch.testing.assert_close(found[:2], expected[:2])
    assert len({loss.item() for loss in found[0]}) == 3
    for one, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras_vdrop.VariationalConv2D(2, 2, num_examples=10),
        lambda: keras_vdrop.VariationalDense(
            2, noise="independent", estimator="flipout", num_examples=10
        ),
        lambda: keras_vdrop.VariationalDropout(0.2, num_examples=10),
        lambda: keras_vdrop.VariationalDepthwiseConv2D(2, num_examples=10),
        lambda: keras_vdrop.VariationalEinsumDense(
            "abcd,de->abce", (4, 4, 3), num_examples=10
        ),
    ],
)
def test_other_layers_without_a_break(make):
    import torch

    layer = make()
    x = torch.ones(2, 4, 4, 3)
    layer(x)
    first, second = (
        compiled(lambda x: layer(x, training=True))(x) for _ in "12"
    )
    assert not torch.equal(first, second)
    inference = compiled(lambda x: layer(x, training=False))(x)
    torch.testing.assert_close(inference, layer(x))


def test_recorded_noise_has_the_keys_of_the_host():
    import torch

    from keras_vdrop.backend import torch_random
    from keras_vdrop.backend import torch_recorded

    state = torch.tensor([123456, 2**31 - 1, 7])
    key = torch_random.draw_key(state)
    assert torch_recorded.hashed(*state.unbind(), 0) == key
    assert torch_recorded.hashed(key, 5) == torch_random.fold_key(key, 5)
    keys = torch_random.split_key(key, 3)
    assert torch.equal(torch_recorded.hashed(key, torch.arange(3)), keys)
    following = torch_recorded.state_after(state)
    assert following.tolist() == [123456, 2**31 - 1, 8]


def test_recorded_noise_is_normal():
    import torch
    from scipy import stats

    from keras_vdrop.backend.torch_recorded import normal

    number = 2**17
    draws = np.stack(
        [
            normal(torch.tensor(key), (number,), torch.float32, "cpu").numpy()
            for key in (0, 1, -(2**62))
        ]
    )
    for drawn in draws:
        assert stats.kstest(drawn, "norm").pvalue > 1e-3
        assert abs(np.mean(drawn**4) - 3) < 4 * np.sqrt(96 / number)
        assert abs(np.mean(drawn[1:] * drawn[:-1])) < 4 / np.sqrt(number)
    # Of neighbouring keys too.
    between = np.corrcoef(draws)[np.triu_indices(3, 1)]
    assert np.abs(between).max() < 4 / np.sqrt(number)


def test_recorded_noise_has_tails():
    """None of 2**23 normal numbers is beyond 5 once in 10,000 times or so.

    The largest that 32 bits can give is 6.66.
    """
    import torch

    from keras_vdrop.backend.torch_recorded import normal

    drawn = normal(torch.tensor(3), (2**23,), torch.float32, "cpu")
    assert 5.0 < drawn.abs().max() < 6.76


def breaks_of_a_step(layer):
    """How often a compiled `train_step` of Keras leaves its graph."""
    import torch
    from torch._dynamo.utils import counters

    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    x, y = torch.ones(4, 3), torch.ones(4, 2)
    model.train_on_batch(x, y)
    torch._dynamo.reset()
    counters.clear()
    step = torch.compile(lambda x, y: model.train_step((x, y)), backend="eager")
    step(x, y)
    step(x, y)
    return sum(counters["graph_break"].values())


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_a_training_step_breaks_as_often_as_without_noise(kind):
    layer = keras_vdrop.VariationalDense(2, num_examples=8, **kind)
    plain = breaks_of_a_step(keras.layers.Dense(2))
    assert breaks_of_a_step(layer) == plain
