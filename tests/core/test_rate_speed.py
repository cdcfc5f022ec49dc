"""The variable of the noise in another scale than log alpha."""

import keras
import numpy as np
import pytest
from backends import gradients
from cases import POSTERIORS
from cases import build

import keras_vdrop

every_posterior = pytest.mark.parametrize(
    "posterior", POSTERIORS.values(), ids=POSTERIORS
)
to_numpy = keras.ops.convert_to_numpy


def make(units=4, **arguments):
    arguments = {"noise": "correlated", "num_examples": 10, **arguments}
    layer = keras_vdrop.VariationalDense(units, rate=0.2, **arguments)
    return layer, keras.Sequential([keras.Input((3,)), layer])


def step(model, optimizer):
    """One step without inputs: the KL alone moves alpha, up."""
    before = to_numpy(model.layers[0].log_alpha)
    model.compile(optimizer, "mse")
    x = np.zeros((4, 3), "float32")
    y = np.zeros((4, model.output_shape[-1]))
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    return to_numpy(model.layers[0].log_alpha) - before


@pytest.mark.parametrize("speed", [0.5, 1, 32, None])
@pytest.mark.parametrize("granularity", ["layer", "input"])
def test_a_step_of_adam(speed, granularity):
    _, model = make(rate_speed=speed, granularity=granularity)
    # The first step is of the learning rate, whatever the gradient.
    moved = step(model, keras.optimizers.Adam(0.001))
    expected = 0.001 * (32 if speed is None else speed)
    np.testing.assert_allclose(moved, expected, rtol=1e-3)


@pytest.mark.parametrize(
    "noise, granularity, speed, factor",
    [
        ("correlated", "layer", None, 32**2 / 3),
        ("correlated", "layer", 2, 32**2 / 3),
        ("correlated", "input", None, 32**2),
        ("independent", "layer", 32, 32**2 / 3000),
        # Never further than the gradient of log alpha says.
        ("independent", "layer", None, 32**2 / 3000),
        ("independent", "output", None, 1),
        ("independent", "input", None, 1),
        ("independent", "weight", None, 1),
    ],
)
def test_a_step_of_gradient_descent(noise, granularity, speed, factor):
    """It does not grow with the number of weights that share an alpha."""
    arguments = {"noise": noise, "granularity": granularity, "units": 1000}
    _, plain = make(rate_speed=1, **arguments)
    _, natural = make(rate_speed=speed, **arguments)
    moved = step(plain, keras.optimizers.SGD(1e-3))
    np.testing.assert_allclose(
        step(natural, keras.optimizers.SGD(1e-3)), moved * factor, rtol=3e-3
    )


def test_independent_noise_is_plain():
    layer, _ = make(noise="independent")
    assert isinstance(layer.log_alpha, keras.Variable)
    assert layer.get_config()["rate_speed"] is None


@every_posterior
def test_the_same_but_for_its_variable(posterior):
    """Outputs, KL and the gradients of everything else."""
    plain, x = build("dense", **posterior, rate_speed=1, seed=3)
    fast, _ = build("dense", **posterior, rate_speed=16, seed=3)
    for name in ("kernel", "bias"):
        getattr(fast, name).assign(getattr(plain, name))
    if plain.parameterization == "additive":
        fast.log_variance.assign(to_numpy(plain.log_variance))
    assert fast.kl() == plain.kl()
    np.testing.assert_array_equal(fast.dropout_rates(), plain.dropout_rates())
    found, expected = (
        gradients(lambda y: keras.ops.sum(keras.ops.square(y)), layer, x)
        for layer in (fast, plain)
    )
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("speeds", [(32, 1), (1, 4), (None, None)])
def test_files_have_log_alpha(speeds, tmp_path):
    layers, models = zip(*[make(rate_speed=s) for s in speeds], strict=True)
    layers[0].log_alpha.assign(-1.2345678)
    path = tmp_path / "model.weights.h5"
    models[0].save_weights(path)
    models[1].load_weights(path)
    np.testing.assert_array_equal(
        to_numpy(layers[1].log_alpha), to_numpy(layers[0].log_alpha)
    )


def test_log_alpha_is_read_and_assigned():
    layer, _ = make(granularity="input")
    found = layer.log_alpha
    found.assign([-1.0, -2.0, -3.0])
    assert (found.shape, found.ndim, found.dtype) == ((3,), 1, "float32")
    for read in (
        found.numpy(),
        np.asarray(found),
        to_numpy(found.value),
        to_numpy(keras.ops.convert_to_tensor(found)),
        np.log(to_numpy(keras.ops.exp(found))),
    ):
        np.testing.assert_allclose(read, [-1, -2, -3], rtol=1e-6)
    np.testing.assert_array_equal(
        layer.kernel_noise.variable.numpy(), [-1 / 32, -2 / 32, -3 / 32]
    )
    assert "log_alpha [-1. -2. -3.]" in repr(found)


@pytest.mark.parametrize("speed", [0, -2, 3, 0.3, float("inf"), "fast", True])
def test_no_other_numbers(speed):
    with pytest.raises(ValueError, match="argument `rate_speed`.*power of two"):
        make(rate_speed=speed)


def test_optimizers_of_the_backends():
    """A step of Adam as torch and optax have it."""
    layer, model = make()
    before = to_numpy(layer.log_alpha)
    if keras.backend.backend() == "torch":
        import torch

        optimizer = torch.optim.Adam(model.parameters(), 0.001)
        sum(model.losses).backward()
        optimizer.step()
    elif keras.backend.backend() == "jax":
        import jax

        optax = pytest.importorskip("optax")

        def kl(values):
            _, _, losses = model.stateless_call(
                values,
                [v.value for v in model.non_trainable_variables],
                np.zeros((1, 3), "float32"),
                return_losses=True,
            )
            return sum(losses)

        values = [v.value for v in model.trainable_variables]
        optimizer = optax.adam(0.001)
        updates, _ = optimizer.update(
            jax.grad(kl)(values), optimizer.init(values)
        )
        for variable, value in zip(
            model.trainable_variables,
            optax.apply_updates(values, updates),
            strict=True,
        ):
            variable.assign(value)
    else:
        pytest.skip("Keras has the optimizers of this backend.")
    moved = to_numpy(layer.log_alpha) - before
    np.testing.assert_allclose(moved, 0.032, rtol=1e-3)
