"""Models whose layers are made by the code of a class."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import keras_vdrop

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
PACKAGE = "test_converted"


@keras.saving.register_keras_serializable(PACKAGE)
class Block(keras.Layer):
    """Makes one layer in `__init__`, and one when it is built."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.first = layers.Dense(units, activation="relu")

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second = layers.Dense(input_shape[-1], name="second")
        self.second.build((*input_shape[:-1], self.units))

    def call(self, inputs):
        return inputs + self.second(self.first(inputs))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(PACKAGE)
class Stack(keras.Layer):
    """Blocks inside a layer: nothing of this is in a config."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [Block(4), Block(5)]

    def build(self, input_shape):
        for block in self.blocks:
            block.build(input_shape)

    def call(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


@keras.saving.register_keras_serializable(PACKAGE)
class Subclassed(keras.Model):
    def __init__(self, units=2, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.stack = Stack()
        self.head = layers.Dense(units, name="head")

    def build(self, input_shape):
        self.stack.build(input_shape)
        self.head.build(input_shape)

    def call(self, inputs):
        return self.head(self.stack(inputs))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def functional():
    inputs = keras.Input((3,))
    outputs = Stack(name="stack")(inputs)
    return keras.Model(inputs, layers.Dense(2, name="head")(outputs))


def subclassed():
    model = Subclassed()
    model(X)
    return model


every_model = pytest.mark.parametrize("make", [functional, subclassed])


def outputs(model):
    return keras.ops.convert_to_numpy(model(X))


@every_model
def test_converted_model_is_one_of_its_class(make):
    plain = make()
    model = keras_vdrop.to_variational(plain, rate=0.3, verbose=0)
    assert isinstance(model, type(plain))
    assert len(keras_vdrop.variational_layers(model)) == 5
    assert keras_vdrop.variational_layers(plain) == []
    np.testing.assert_array_equal(outputs(model), outputs(plain))
    noisy = keras.ops.convert_to_numpy(model(X, training=True))
    assert np.all(noisy != outputs(plain))
    rates = [x.dropout_rates() for x in keras_vdrop.variational_layers(model)]
    np.testing.assert_allclose(rates, 0.3, rtol=1e-5)


@every_model
def test_kl_is_that_of_all_weights(make):
    arguments = {"noise": "independent", "num_examples": 7}
    model = keras_vdrop.to_variational(make(), **arguments, verbose=0)
    layer = keras_vdrop.VariationalDense(1, **arguments)
    layer.build((None, 1))
    one = float(keras.ops.convert_to_numpy(layer.losses[0]))
    total = sum(map(float, map(keras.ops.convert_to_numpy, model.losses)))
    weights = 3 * 4 + 4 * 3 + 3 * 5 + 5 * 3 + 3 * 2
    np.testing.assert_allclose(total, weights * one, rtol=1e-5)


@every_model
def test_trains_and_survives_a_file(make, tmp_path):
    model = keras_vdrop.to_variational(
        make(), noise="correlated", granularity="input", verbose=0
    )
    keras_vdrop.set_num_examples(model, len(X))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    before = outputs(model)
    model.fit(X, np.zeros((4, 2)), epochs=2, verbose=0)
    assert np.any(outputs(model) != before)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert isinstance(loaded, type(make()))
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(outputs(loaded), outputs(model))
    for a, b in zip(loaded.losses, model.losses, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)
        )
    loaded.fit(X, np.zeros((4, 2)), verbose=0)


@every_model
def test_weights_file(make, tmp_path):
    plain = make()
    model = keras_vdrop.to_variational(plain, verbose=0)
    model.save_weights(tmp_path / "w.weights.h5")
    other = keras_vdrop.to_variational(make(), verbose=0)
    other.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(outputs(other), outputs(plain))


@every_model
def test_back_to_its_plain_class(make):
    plain = make()
    model = keras_vdrop.to_variational(plain, verbose=0)
    back = keras_vdrop.to_deterministic(model, verbose=0)
    assert type(back) is type(plain)
    assert keras_vdrop.variational_layers(back) == []
    assert type(back.get_config()) is dict
    np.testing.assert_array_equal(outputs(back), outputs(plain))
    stack = back.layers[-2]
    assert type(stack) is Stack
    assert type(stack.blocks[0].first) is layers.Dense


@every_model
def test_filter_by_path_and_conversion_in_steps(make):
    plain = make()
    first = keras_vdrop.to_variational(
        plain,
        lambda layer: {"rate": 0.2} if layer.name == "second" else False,
        verbose=0,
    )
    assert len(keras_vdrop.variational_layers(first)) == 2
    both = keras_vdrop.to_variational(first, rate=0.4, verbose=0)
    assert len(keras_vdrop.variational_layers(both)) == 5
    rates = sorted(
        float(x.dropout_rates()) for x in keras_vdrop.variational_layers(both)
    )
    np.testing.assert_allclose(rates, [0.2, 0.2, 0.4, 0.4, 0.4], rtol=1e-5)
    np.testing.assert_array_equal(outputs(both), outputs(plain))


def test_predict_and_summary_reach_every_layer(capsys):
    model = keras_vdrop.to_variational(subclassed(), rate=0.3, verbose=0)
    found = keras_vdrop.predict(model, X, num_samples=3, verbose=0, seed=1)
    assert np.all(found.std > 0)
    np.testing.assert_array_equal(outputs(model), outputs(model))
    keras_vdrop.summary(model)
    assert capsys.readouterr().out.count("dense") >= 2


@keras.saving.register_keras_serializable(PACKAGE)
class Recurrent(keras.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.lstm = layers.LSTM(3)
        self.adapted = layers.Dense(3, name="adapted")

    def build(self, input_shape):
        self.lstm.build(input_shape)
        self.adapted.build((None, 3))
        self.adapted.enable_lora(1)

    def call(self, inputs):
        return self.adapted(self.lstm(inputs))


def test_reasons_of_what_is_left(capsys):
    inside = keras_vdrop.Variational(layers.Conv1D(3, 2), name="wrapper")
    model = keras.Sequential(
        [keras.Input((4, 3)), inside, Recurrent(), layers.Dense(2)]
    )
    found = keras_vdrop.to_variational(model)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "1 layer replaced: 1 Dense",
        "2 layers with weights left alone:",
        "  1 LSTMCell (made by the code of its owner): lstm_cell",
        "  1 Dense (LoRA or quantization): adapted",
    ]
    kinds = [type(x).__name__ for x in keras_vdrop.variational_layers(found)]
    assert kinds == ["Variational", "VariationalDense"]


PROGRAM = """
import keras, numpy as np, sys
sys.path.insert(0, sys.argv[2])
import test_converted, keras_vdrop
model = keras.saving.load_model(sys.argv[1])
assert len(keras_vdrop.variational_layers(model)) == 5
np.save(sys.argv[3], keras.ops.convert_to_numpy(model(test_converted.X)))
"""


@pytest.mark.slow
@every_model
def test_file_opens_in_another_process(make, tmp_path):
    model = keras_vdrop.to_variational(make(), verbose=0)
    model.save(tmp_path / "model.keras")
    folder = __file__.rpartition("/")[0]
    arguments = [tmp_path / "model.keras", folder, tmp_path / "found.npy"]
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], check=True
    )
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(found, outputs(model), rtol=1e-6)


class NoConfig(keras.Model):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.dense = layers.Dense(2)

    def call(self, inputs):
        return self.function(self.dense(inputs))


def test_a_model_without_a_config_is_refused():
    model = NoConfig(lambda x: x)
    model(X)
    with pytest.raises(ValueError, match="argument `model`"):
        keras_vdrop.to_variational(model)
