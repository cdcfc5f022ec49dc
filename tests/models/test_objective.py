import keras
import numpy as np
import pytest

import keras_vdrop


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras_vdrop.VariationalDense(4)
        self.block = keras.Sequential([keras_vdrop.VariationalDense(4)])
        self.wrapped = keras.layers.TimeDistributed(
            keras_vdrop.VariationalDropout()
        )

    def call(self, inputs):
        return self.wrapped(self.block(self.hidden(inputs)))


def variational_layers(model):
    return [model.hidden, model.block.layers[-1], model.wrapped.layer]


@pytest.mark.parametrize("built", [False, True])
def test_reaches_every_layer(built):
    model = Subclassed()
    if built:
        model(np.ones((2, 3, 4)))
    keras_vdrop.set_num_examples(model, 50, kl_downscale=2)
    if not built:
        model(np.ones((2, 3, 4)))
    for layer in variational_layers(model):
        assert (layer.num_examples, layer.kl_downscale) == (50, 2.0)
        np.testing.assert_allclose(layer.kl_weight.numpy(), 0.01)


def test_takes_a_layer():
    layer = keras_vdrop.VariationalDense(2)
    keras_vdrop.set_num_examples(layer, 5)
    assert layer.num_examples == 5


@pytest.mark.parametrize(
    "arguments", [(0,), (None,), (2.5,), (10, 0.0), (10, "x")]
)
def test_refused_call_changes_nothing(arguments):
    model = Subclassed()
    model(np.ones((2, 3, 4)))
    keras_vdrop.set_num_examples(model, 10)
    with pytest.raises(ValueError, match="argument `(num_ex|kl_down)"):
        keras_vdrop.set_num_examples(model, *arguments)
    for layer in variational_layers(model):
        assert (layer.num_examples, layer.kl_downscale) == (10, 1.0)
        np.testing.assert_allclose(layer.kl_weight.numpy(), 0.1)


def test_needs_a_variational_layer():
    with pytest.raises(ValueError, match="argument `model`.*variational"):
        keras_vdrop.set_num_examples(keras.layers.Dense(2), 10)
    with pytest.raises(ValueError, match="argument `model`"):
        keras_vdrop.set_num_examples("model", 10)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_loss_without_it_is_refused_and_training_can_go_on(method, eager):
    model = keras.Sequential(
        [keras.Input((3,)), keras_vdrop.VariationalDense(1, name="mine")]
    )
    model.compile("adam", "mse", run_eagerly=eager)
    x, y = np.ones((4, 3)), np.ones((4, 1))
    before = model.get_weights()
    with pytest.raises(ValueError, match="mine.*\n*.*set_num_examples"):
        getattr(model, method)(x, y, verbose=0)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    model.predict(x, verbose=0)
    model(x, training=True)
    keras_vdrop.set_num_examples(model, 4)
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])
    assert np.isfinite(model.evaluate(x, y, verbose=0))


@pytest.mark.parametrize("argument", ["adaptive", "trainable"])
def test_training_without_kl_needs_no_number(argument):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras_vdrop.VariationalDense(2, **{argument: False}),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = np.zeros((4, 3)), np.full((4, 1), 2.0)
    # No inputs, no bias: the mean square is all of the loss.
    assert model.fit(x, y, verbose=0).history["loss"] == [4.0]
    assert model.losses == []


def test_weight_of_the_kl_takes_effect_without_a_new_trace():
    traces = []

    class Counted(keras_vdrop.VariationalDense):
        def call(self, inputs, training=None):
            traces.append(1)
            return super().call(inputs, training=training)

    layer = Counted(3, rate=0.2, num_examples=10)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.zeros((4, 3), "float32")
    first = model.fit(x, x, verbose=0).history["loss"][0]
    count = len(traces)
    keras_vdrop.set_num_examples(model, 20)
    second = model.fit(x, x, verbose=0).history["loss"][0]
    layer.kl_weight.assign(0.0)
    third = model.fit(x, x, verbose=0).history["loss"][0]
    np.testing.assert_allclose(
        [second, third], [first / 2, 0], rtol=1e-5, atol=1e-9
    )
    if keras.backend.backend() != "torch":  # torch runs `call` each time
        assert len(traces) == count
