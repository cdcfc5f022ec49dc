"""A call that is refused, because N is unknown, changes nothing."""

import itertools

import keras
import numpy as np
import pytest

import keras_vdrop

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

METHODS = {
    "fit": lambda model: model.fit(X, Y, verbose=0),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "test_on_batch": lambda model: model.test_on_batch(X, Y),
}


def make(built, optimizer=None):
    model = keras.Sequential(
        [
            *([keras.Input((3,))] if built else []),
            keras_vdrop.VariationalDense(2, name="mine"),
            keras.layers.BatchNormalization(),
            keras_vdrop.VariationalDense(1, granularity="weight"),
        ]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse")
    return model


def refuse(model, method):
    with pytest.raises(ValueError, match="'mine'.*\n*.*set_num_examples"):
        METHODS[method](model)


@pytest.mark.parametrize("mend", ["model", "layers"])
@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
@pytest.mark.parametrize(
    "methods",
    [
        *itertools.product(METHODS, repeat=1),
        ("fit", "fit", "fit"),
        ("evaluate", "fit"),
        ("train_on_batch", "fit", "evaluate"),
        ("fit", "train_on_batch"),
        ("test_on_batch", "evaluate", "train_on_batch"),
    ],
    ids="-".join,
)
def test_refused_and_then_mended(methods, built, mend):
    model = make(built)
    before = model.get_weights() if built else None
    for method in methods:
        refuse(model, method)
    if built:
        for found, expected in zip(model.get_weights(), before, strict=True):
            if found.dtype.kind == "f":  # Not the state of the seeds.
                np.testing.assert_array_equal(found, expected)
    if mend == "model":
        keras_vdrop.set_num_examples(model, 4)
    else:
        for layer in keras_vdrop.variational_layers(model):
            layer.set_num_examples(4)
    for method in METHODS.values():
        assert np.all(
            np.isfinite(
                method(model).history["loss"]
                if method is METHODS["fit"]
                else method(model)
            )
        )
    kernel = model.layers[0].kernel.numpy()
    assert kernel.shape == (3, 2) and np.all(np.isfinite(kernel))
    assert model.predict(X, verbose=0).shape == (4, 1)
    # The KL is in the loss.
    expected = sum(layer.kl() for layer in model.layers[::2]) / 4
    found = float(sum(keras.ops.convert_to_numpy(x) for x in model.losses))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_refused_before_a_seed_is_drawn(method):
    model = make(True)
    model.compile("sgd", "mse", run_eagerly=True)
    before = model.get_weights()
    refuse(model, method)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_check_leaves_nothing_in_the_logs():
    model = make(True)
    keras_vdrop.set_num_examples(model, 4)
    assert list(model.fit(X, Y, verbose=0).history) == ["loss"]
    assert isinstance(model.evaluate(X, Y, verbose=0), float)
