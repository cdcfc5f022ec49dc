"""Units that are constants, beside large numbers and at the threshold."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_vdrop
from keras_vdrop.models.unit_constants import uniform_shift


def to_numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def convolutions(kernel, bias, strides=1):
    """Constants read by a convolution that pads, and the pruned model.

    Args:
        kernel: Array `(5, units, channels)`, of the second convolution.
        bias: The constants. One more unit, the first, reads the inputs.
    """
    first = keras_vdrop.VariationalConv1D(
        len(bias) + 1, 1, granularity="output", kl="exact", max_alpha=None
    )
    second = layers.Conv1D(
        kernel.shape[-1], 5, strides, "same", data_format="channels_last"
    )
    model = keras.Sequential([keras.Input((9, 1)), first, second])
    keras_vdrop.set_num_examples(model, 1)
    first.kernel.assign(np.ones((1, 1, len(bias) + 1)))
    first.bias.assign([0.0, *bias])
    log_alpha = np.full(len(bias) + 1, 9.0)
    log_alpha[0] = 0.0
    first.log_alpha.assign(log_alpha.reshape(first.log_alpha.shape))
    reads_input = np.zeros((5, 1, kernel.shape[-1]))
    reads_input[2] = 1
    second.kernel.assign(np.concatenate([reads_input, kernel], axis=1))
    pruned = keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
    return model, pruned


def by_numpy(model, strides=1):
    """The outputs for inputs of zero: what the constants add, in float64."""
    kernel, _ = (w.astype("float64") for w in model.layers[1].get_weights())
    constants = to_numpy(model.layers[0].bias).astype("float64")
    padded = np.zeros((13, len(constants)))
    padded[2:11] = constants
    return np.stack(
        [
            np.einsum("ti,tio->o", padded[start : start + 5], kernel)
            for start in range(0, 9, strides)
        ]
    )


@pytest.mark.parametrize("strides", [1, 2])
def test_a_channel_is_not_compared_with_a_larger_one(strides):
    # Channel 0 gets a million everywhere, channel 1 less at the borders.
    kernel = np.zeros((5, 1, 2))
    kernel[2, 0, 0] = 1e6
    kernel[:, 0, 1] = [0.5, 0.1, 0.1, 0.1, 0.1]
    model, pruned = convolutions(kernel, [1.0], strides)
    found = pruned.predict(np.zeros((1, 9, 1)), verbose=0)[0]
    expected = by_numpy(model, strides)
    np.testing.assert_allclose(expected[[0, -1], 1], [0.3, 0.7])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert pruned.layers[0].filters == 2


def test_a_gap_is_not_compared_with_what_cancels():
    # A million less a million, and a half that the borders do not have.
    kernel = np.zeros((5, 3, 1))
    kernel[2, :2, 0] = 1e6, -1e6
    kernel[0, 2, 0] = 0.5
    model, pruned = convolutions(kernel, [1.0, 1.0, 1.0])
    found = pruned.predict(np.zeros((1, 9, 1)), verbose=0)[0]
    expected = by_numpy(model)
    np.testing.assert_allclose(expected[[0, -1], 0], [0, 0.5])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_is_the_same_everywhere_goes_beside_large_numbers():
    # Only the middle of the kernel reads the constants.
    kernel = np.zeros((5, 3, 2))
    kernel[2] = [[1e6, 0.5], [-1e6, 0.25], [3.0, 0.125]]
    model, pruned = convolutions(kernel, [1.0, 1.0, 1.0])
    assert pruned.layers[0].filters == 1
    np.testing.assert_array_equal(to_numpy(pruned.layers[1].bias), [3, 0.875])
    found = pruned.predict(np.zeros((1, 9, 1)), verbose=0)[0]
    np.testing.assert_allclose(found, by_numpy(model), rtol=1e-5)


def test_many_constants_are_added_exactly():
    # In float32 the small ones are lost beside the first.
    first = keras_vdrop.VariationalDense(
        2002, granularity="output", kl="exact", max_alpha=None
    )
    second = layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), first, second])
    keras_vdrop.set_num_examples(model, 1)
    log_alpha = np.full(2002, 9.0)
    log_alpha[0] = 0.0
    first.log_alpha.assign(log_alpha.reshape(first.log_alpha.shape))
    first.bias.assign(np.ones(2002))
    kernel = np.full((2002, 1), 0.25)
    kernel[:2] = [[0.0], [2.0**24]]
    second.kernel.assign(kernel)
    pruned = keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
    np.testing.assert_array_equal(
        to_numpy(pruned.layers[1].bias), [2**24 + 500]
    )


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_shifts_are_those_of_the_layer(padding, dilation):
    generator = np.random.default_rng(0)
    layer = layers.Conv2D(
        3,
        3,
        padding=padding,
        dilation_rate=dilation,
        data_format="channels_last",
    )
    layer(keras.Input((7, 6, 4)))
    layer.kernel.assign(generator.normal(size=(3, 3, 4, 3)))
    constants = generator.normal(size=4).astype("float32")
    inputs = np.broadcast_to(constants, (1, 7, 6, 4))
    outputs = to_numpy(layer(inputs)).reshape(-1, 3)
    found = uniform_shift(layer, inputs)
    if padding == "same":
        assert found is None
    else:
        np.testing.assert_allclose(outputs - found, 0, atol=1e-5)
    # Nothing but the middle is read: the padding is not seen.
    kernel = to_numpy(layer.kernel).copy()
    kernel[[0, 2]] = kernel[:, [0, 2]] = 0
    layer.kernel.assign(kernel)
    outputs = to_numpy(layer(inputs)).reshape(-1, 3)
    found = uniform_shift(layer, inputs)
    np.testing.assert_allclose(outputs - found, 0, atol=1e-5)


def test_inputs_that_differ_have_no_uniform_shift():
    layer = layers.Conv1D(1, 1, data_format="channels_last")
    inputs = np.ones((1, 4, 2), "float32")
    layer(keras.Input((4, 2)))
    layer.kernel.assign(np.ones((1, 2, 1)))
    np.testing.assert_array_equal(uniform_shift(layer, inputs), [2])
    inputs[0, 3, 0] = 1.001
    assert uniform_shift(layer, inputs) is None


@pytest.mark.parametrize("threshold", [3.0, -1.5])
def test_a_weight_at_the_threshold_stays(threshold):
    layer = keras_vdrop.VariationalDense(
        3, granularity="weight", kl="exact", max_alpha=None, num_examples=1
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    at = np.float32(threshold)
    below, above = np.nextafter(at, np.float32([-9, 9]))
    layer.log_alpha.assign([[below, at, above]])
    np.testing.assert_array_equal(
        to_numpy(layer.kernel_noise.log_alpha()), [[below, at, above]]
    )
    layer.kernel.assign([[1.0, 2.0, 3.0]])
    pruned = keras_vdrop.to_deterministic(model, prune=threshold, verbose=0)
    np.testing.assert_array_equal(
        to_numpy(pruned.layers[0].kernel), [[1, 2, 0]]
    )
