"""Batch normalization that becomes a part of the layer before it."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_vdrop

SPARSE = {
    "granularity": "weight",
    "parameterization": "additive",
    "kl": "exact",
    "max_alpha": None,
}
# The layer before, and the shape of its inputs.
CASES = {
    "dense": (lambda: layers.Dense(4, use_bias=False), (5,)),
    "dense_bias": (lambda: layers.Dense(4), (3, 5)),
    "conv1d": (lambda: layers.Conv1D(4, 2, padding="causal"), (6, 3)),
    "conv2d": (
        lambda: layers.Conv2D(4, 3, padding="same", use_bias=False),
        (5, 5, 3),
    ),
    "conv2d_groups": (lambda: layers.Conv2D(4, 2, groups=2), (5, 5, 2)),
    "depthwise": (
        lambda: layers.DepthwiseConv2D(2, depth_multiplier=2, use_bias=False),
        (5, 5, 3),
    ),
}


def randomize(model):
    generator = np.random.default_rng(2)
    for variable in model.weights:
        if "log_" not in variable.name and "float" in variable.dtype:
            noise = generator.uniform(0.3, 2, variable.shape)
            variable.assign(noise)


def assert_same_outputs(model, other, shape):
    x = np.random.default_rng(3).normal(size=(4, *shape))
    np.testing.assert_allclose(
        model.predict(x, verbose=0),
        other.predict(x, verbose=0),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("arguments", [{}, {"scale": False}, {"center": False}])
@pytest.mark.parametrize("case", CASES)
def test_same_outputs(case, arguments):
    make, shape = CASES[case]
    model = keras.Sequential(
        [
            keras.Input(shape),
            make(),
            layers.BatchNormalization(**arguments),
            layers.ReLU(),
        ]
    )
    randomize(model)
    before = model.get_weights()
    folded = keras_vdrop.fold_batch_normalization(model)
    assert type(folded.layers[1]) is layers.Identity
    assert len(folded.weights) == 2
    assert_same_outputs(model, folded, shape)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arguments", [SPARSE, {"rate": 0.2}], ids=str)
def test_alpha_stays(case, arguments):
    make, shape = CASES[case]
    model = keras_vdrop.to_variational(
        keras.Sequential(
            [keras.Input(shape), make(), layers.BatchNormalization()]
        ),
        verbose=0,
        **arguments,
    )
    folded = keras_vdrop.fold_batch_normalization(model)
    randomize(model)
    folded = keras_vdrop.fold_batch_normalization(model)
    np.testing.assert_allclose(
        model.layers[0].dropout_rates(),
        folded.layers[0].dropout_rates(),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        model.layers[0].kl(), folded.layers[0].kl(), rtol=1e-4
    )
    assert_same_outputs(model, folded, shape)
    plain = keras_vdrop.to_deterministic(folded, precision=0.01)
    assert_same_outputs(model, folded, shape)
    assert type(plain.layers[1]) is layers.Identity


def test_what_is_left_where_it_is():
    inputs = keras.Input((6, 6, 3))
    active = layers.Conv2D(3, 1, activation="relu", name="active")(inputs)
    x = layers.BatchNormalization(name="behind_activation")(active)
    shared = layers.Conv2D(3, 1, name="shared")(x)
    y = layers.BatchNormalization(name="one_of_two")(shared)
    x = layers.Add()([shared, y])
    x = layers.Conv2D(6, 1, name="other_axis")(x)
    x = layers.BatchNormalization(axis=1, name="rows")(x)
    x = layers.Conv2D(3, 1, name="last")(layers.MaxPooling2D()(x))
    x = layers.BatchNormalization(name="folded")(x)
    model = keras.Model(inputs, x)
    randomize(model)
    folded = keras_vdrop.fold_batch_normalization(model)
    left = [
        layer.name
        for layer in folded.layers
        if isinstance(layer, layers.BatchNormalization)
    ]
    assert left == ["behind_activation", "one_of_two", "rows"]
    assert_same_outputs(model, folded, (6, 6, 3))


def test_nested_models():
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization()]
    )
    model = keras.Sequential([keras.Input((4,)), inner, layers.Dense(2)])
    randomize(model)
    folded = keras_vdrop.fold_batch_normalization(model)
    assert type(folded.layers[0].layers[1]) is layers.Identity
    assert_same_outputs(model, folded, (4,))


def test_refused():
    with pytest.raises(ValueError, match="`model`"):
        keras_vdrop.fold_batch_normalization(layers.Dense(2))
