"""The weight of the KL belongs to the training, not to the weights."""

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.callbacks import KLWarmup

X = np.ones((8, 3), "float32")


def make(num_examples=None):
    layer = keras_vdrop.VariationalDense(3, num_examples=num_examples)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    return model


def weight_of(model):
    return float(keras.ops.convert_to_numpy(model.layers[0].kl_weight))


def test_weights_of_a_model_without_a_number(tmp_path):
    path = tmp_path / "model.weights.h5"
    make().save_weights(path)
    model = make(32)
    model.load_weights(path)
    assert weight_of(model) == 1 / 32
    model.set_weights(make().get_weights())
    assert weight_of(model) == 1 / 32


def test_best_weights_of_a_warm_up_are_no_longer_in_it():
    model = make(8)
    stopping = keras.callbacks.EarlyStopping(
        "loss", min_delta=9, patience=4, restore_best_weights=True
    )
    model.fit(X, X, epochs=4, callbacks=[KLWarmup(2), stopping], verbose=0)
    assert weight_of(model) == 1 / 8


def test_a_checkpoint_of_a_warm_up_is_not_in_it(tmp_path):
    model = make(8)
    path = tmp_path / "model.weights.h5"
    model.fit(X, X, epochs=2, callbacks=[KLWarmup(10)], verbose=0)
    model.save_weights(path)
    other = make(8)
    other.load_weights(path)
    assert weight_of(other) == 1 / 8


@pytest.mark.parametrize("built", [True, False])
def test_a_new_number_ends_a_warm_up(built):
    layer = keras_vdrop.VariationalDense(2, num_examples=5)
    if built:
        layer.build((None, 3))
    layer.scale_kl(0.25)
    keras_vdrop.set_num_examples(layer, 10)
    if not built:
        layer.build((None, 3))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer.kl_weight), 0.1, rtol=1e-6
    )
