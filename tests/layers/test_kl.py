"""The KL in the loss: what it counts, and how it is weighted."""

import keras
import numpy as np
import pytest
from backends import gradients
from cases import KERNEL_LAYERS
from cases import build
from cases import every_kernel_layer
from cases import every_posterior

import keras_vdrop

CUBIC = [0.58629921, -1.50204118, 1.16145124, 0]


def kl_of_rate(rate):
    """The paper's KL of one weight, in numpy."""
    alpha = rate / (1 - rate)
    return sum(CUBIC) - np.polyval(CUBIC, alpha) - np.log(alpha) / 2


def kl_of(model):
    return float(keras.ops.convert_to_numpy(sum(model.losses)))


# Weights of the kernel, and input scales.
COUNTS = {
    "dense": (3 * 4, 3),
    "dense_rank_3": (3 * 2, 3),
    "conv1d_causal": (2 * 3 * 2, 3),
    "conv1d_causal_channels_first": (2 * 3 * 2, 3),
    "conv2d_strides": (2 * 2 * 2 * 2, 2),
    "conv2d_groups": (2 * 1 * 2 * 4, 4),
    "conv3d": (8 * 2 * 2, 2),
    "conv2d_channels_first": (2 * 2 * 3 * 2, 3),
    "depthwise_conv2d": (2 * 1 * 3 * 2, 3),
    "depthwise_conv1d": (2 * 3 * 2, 3),
    "conv1d_transpose": (2 * 2 * 3, 3),
    "conv2d_transpose": (2 * 1 * 2 * 2, 2),
    "conv3d_transpose": (1 * 2 * 1 * 2 * 2, 2),
    "einsum_dense": (3 * 2 * 2, 3),
    "einsum_dense_shared": (2 * 3 * 2, 2 * 3),
}


@every_kernel_layer
@every_posterior
def test_counts_weights_or_scales(case, posterior):
    cls, own, shape = KERNEL_LAYERS[case]
    layer = cls(**own, rate=0.2, **posterior, num_examples=7)
    layer.build((None, *shape))
    count = COUNTS[case][posterior.get("noise") == "correlated"]
    np.testing.assert_allclose(
        kl_of(layer), count * kl_of_rate(0.2) / 7, rtol=1e-5
    )


@pytest.mark.parametrize("granularity", ["layer", "input"])
@pytest.mark.parametrize("axis, count", [(-1, 5), (1, 3)])
def test_dropout_layer_counts_its_axis(granularity, axis, count):
    layer = keras_vdrop.VariationalDropout(
        0.2, granularity=granularity, axis=axis, num_examples=7
    )
    layer.build((None, 3, 4, 5))
    np.testing.assert_allclose(
        kl_of(layer), count * kl_of_rate(0.2) / 7, rtol=1e-5
    )


@every_posterior
def test_gradient_by_log_alpha(posterior):
    layer, inputs = build("dense", **posterior, rate_speed=1)
    log_alpha = keras.ops.convert_to_numpy(layer.log_alpha)
    # Without inputs nothing but the KL is left.
    *_, found = gradients(keras.ops.sum, layer, np.zeros_like(inputs))
    alpha = np.exp(log_alpha)
    slope = -np.polyval(np.polyder(CUBIC), alpha) * alpha - 0.5
    count = COUNTS["dense"][posterior.get("noise") == "correlated"] / alpha.size
    np.testing.assert_allclose(found, count * slope / 10, rtol=1e-5)


@every_posterior
def test_gradient_of_a_variable_in_another_scale(posterior):
    """That of log alpha by the chain rule, divided by how many share it."""
    layer, inputs = build("dense", **posterior, rate_speed=8)
    alpha = np.exp(keras.ops.convert_to_numpy(layer.log_alpha))
    *_, found = gradients(keras.ops.sum, layer, np.zeros_like(inputs))
    slope = -np.polyval(np.polyder(CUBIC), alpha) * alpha - 0.5
    # Gradient descent moves log alpha as far whatever the scale.
    np.testing.assert_allclose(found, 32**2 / 8 * slope / 10, rtol=1e-5)


def test_kl_downscale_and_num_examples():
    def kl(**arguments):
        layer = keras_vdrop.VariationalDense(
            4, rate=0.2, noise="independent", **arguments
        )
        layer.build((None, 3))
        return kl_of(layer)

    whole = 12 * kl_of_rate(0.2)
    np.testing.assert_allclose(kl(num_examples=50), whole / 50, rtol=1e-5)
    np.testing.assert_allclose(
        kl(num_examples=50, kl_downscale=3.0), whole / 150, rtol=1e-5
    )


def layer_once(layer):
    return keras.Sequential([keras.Input((2, 3)), layer])


def layer_twice(layer):
    inputs = keras.Input((2, 3))
    return keras.Model(inputs, layer(layer(inputs)))


def layer_in_time(layer):
    return keras.Sequential(
        [keras.Input((2, 3)), keras.layers.TimeDistributed(layer)]
    )


def layer_in_nested_models(layer):
    inner = keras.Sequential([keras.Input((2, 3)), layer])
    return keras.Sequential([keras.Input((2, 3)), inner, inner])


@pytest.mark.parametrize("remat", [None, "full", "activations"])
@pytest.mark.parametrize(
    "make_model",
    [layer_once, layer_twice, layer_in_time, layer_in_nested_models],
)
def test_counts_once_in_fit(make_model, remat):
    with keras.RematScope(mode=remat):
        layer = keras_vdrop.VariationalDense(
            3, activation="tanh", rate=0.2, num_examples=10, noise="independent"
        )
    model = make_model(layer)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.zeros((4, 2, 3), "float32")
    # No inputs, no bias, no error: the loss is the KL.
    history = model.fit(x, x, epochs=2, verbose=0)
    expected = 9 * kl_of_rate(0.2) / 10
    np.testing.assert_allclose(history.history["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(model.evaluate(x, x, verbose=0), expected)


def test_loss_is_mean_nll_plus_scaled_kl():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras_vdrop.VariationalDense(
                5, rate=0.2, activation="relu", noise="independent"
            ),
            keras_vdrop.VariationalDense(4, rate=0.1, noise="correlated"),
        ]
    )
    keras_vdrop.set_num_examples(model, 1000, kl_downscale=3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    x = np.random.normal(size=(20, 3)).astype("float32")
    y = np.random.randint(0, 4, 20)
    logits = model.predict(x, verbose=0).astype("float64")
    log_likelihood = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    nll = -log_likelihood[np.arange(20), y].mean()
    kl = 15 * kl_of_rate(0.2) + 5 * kl_of_rate(0.1)
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0), nll + kl / 3000, rtol=1e-5
    )


def test_constraint_and_way_back_from_the_bound():
    layer = keras_vdrop.VariationalDense(
        1, use_bias=False, rate=0.5, num_examples=1000, noise="independent"
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    assert float(layer.dropout_rates()) == 0.5
    x = np.random.normal(size=(256, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    # Noise hurts here: the gradient brings alpha down from its bound.
    model.fit(x, y, epochs=5, verbose=0)
    assert layer.dropout_rates() < 0.4
    # A KL that weighs everything pushes alpha up, to the bound and no further.
    keras_vdrop.set_num_examples(model, 1)
    rates = []
    for _ in range(10):
        model.fit(x, y, epochs=1, verbose=0)
        rates.append(float(layer.dropout_rates()))
    assert max(rates) == 0.5 and min(rates[-5:]) > 0.45


@pytest.mark.parametrize("max_alpha", [0.25, 0.8])
def test_constraint_at_other_bounds(max_alpha):
    layer = keras_vdrop.VariationalDropout(
        0.1, max_alpha=max_alpha, num_examples=1
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(10.0), "mse")
    x = np.zeros((4, 4), "float32")
    model.fit(x, x, epochs=3, verbose=0)
    np.testing.assert_allclose(
        layer.dropout_rates(), max_alpha / (1 + max_alpha), rtol=1e-6
    )


def test_frozen_layer_has_no_kl():
    layer = keras_vdrop.VariationalDense(
        3, num_examples=10, rate=0.2, noise="independent"
    )
    layer.build((None, 3))
    assert len(layer.losses) == 1
    layer.trainable = False
    assert layer.losses == []
    layer.trainable = True
    assert len(layer.losses) == 1


@every_posterior
def test_kl_in_nats(posterior):
    layer = keras_vdrop.VariationalDense(4, rate=0.2, **posterior)
    layer.build((None, 3))
    count = COUNTS["dense"][posterior.get("noise") == "correlated"]
    np.testing.assert_allclose(layer.kl(), count * kl_of_rate(0.2), rtol=1e-5)


def test_layer_that_is_not_built_says_so():
    layer = keras_vdrop.VariationalDense(4, name="mine", noise="independent")
    for method in (layer.kl, layer.dropout_rates):
        with pytest.raises(ValueError, match="'mine'.*before it is built"):
            method()
