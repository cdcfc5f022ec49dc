"""Outside training a layer is the Keras layer it stands in for."""

import keras
import numpy as np
import pytest
from backends import operations
from cases import build
from cases import every_kernel_layer
from cases import every_layer_and_posterior
from cases import twin

import keras_vdrop


@every_layer_and_posterior
def test_same_outputs(case, posterior):
    layer, inputs = build(case, **posterior, activation="tanh")
    expected = keras.ops.convert_to_numpy(twin(layer)(inputs))
    for arguments in ({}, {"training": False}):
        found = keras.ops.convert_to_numpy(layer(inputs, **arguments))
        np.testing.assert_array_equal(found, expected)


@every_kernel_layer
def test_same_operations(case):
    layer, inputs = build(case, activation="tanh")
    expected = operations(twin(layer), inputs, training=False)
    found = operations(layer, inputs, training=False)
    assert found == expected
    noisy = operations(layer, inputs, training=True)
    assert len(noisy) > len(expected)


def test_dropout_passes_its_inputs_on():
    layer = keras_vdrop.VariationalDropout()
    inputs = np.random.normal(size=(2, 3)).astype("float32")
    found = keras.ops.convert_to_numpy(layer(inputs))
    np.testing.assert_array_equal(found, inputs)
    with_plain = operations(
        keras.layers.GaussianDropout(0.5), inputs, training=False
    )
    assert operations(layer, inputs, training=False) == with_plain


@every_kernel_layer
def test_draws_no_seed(case):
    layer, inputs = build(case)
    before = layer.random_weights[0].seed_state.numpy()
    layer(inputs)
    np.testing.assert_array_equal(
        layer.random_weights[0].seed_state.numpy(), before
    )
    layer(inputs, training=True)
    assert np.any(layer.random_weights[0].seed_state.numpy() != before)


@pytest.mark.parametrize("units", [1, 5])
def test_predict_is_the_mean_prediction_of_the_weights(units):
    model = keras.Sequential(
        [keras.Input((3,)), keras_vdrop.VariationalDense(units)]
    )
    x = np.random.normal(size=(7, 3)).astype("float32")
    kernel, bias = model.get_weights()[:2]
    np.testing.assert_allclose(
        model.predict(x, verbose=0), x @ kernel + bias, rtol=1e-5, atol=1e-6
    )
