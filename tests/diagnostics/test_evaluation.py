"""Metrics of sampled predictions, against numpy."""

import importlib.util

import keras
import numpy as np
import pytest
from scipy import special

import keras_vdrop
from keras_vdrop import evaluate

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 4)).astype("float32")
LABELS = GENERATOR.integers(3, size=40)
WEIGHTS = GENERATOR.random(40).astype("float32")
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy


def make(loss, units=3, activation=None):
    layer = keras_vdrop.VariationalDense(
        units, activation=activation, rate=0.4, num_examples=40
    )
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", loss)
    return model


def mean_of(model, from_logits=None):
    return keras_vdrop.predict(
        model, X, 8, from_logits=from_logits, seed=3, verbose=0
    ).mean


def run(model, *data, **arguments):
    arguments = {"num_samples": 8, "seed": 3, "verbose": 0, **arguments}
    return evaluate(model, *data, **arguments)


def by_definition(p, weights=None):
    weights = np.ones(40) if weights is None else weights
    own = p[np.arange(40), LABELS]
    return {
        "accuracy": np.average(p.argmax(-1) == LABELS, weights=weights),
        "nll": np.average(-np.log(own), weights=weights),
        "brier": np.average(
            ((p - np.eye(3)[LABELS]) ** 2).sum(-1), weights=weights
        ),
        "loss": np.mean(-weights * np.log(own)),
    }


@pytest.mark.parametrize(
    "loss, activation, logits",
    [
        (CROSSENTROPY(from_logits=True), None, True),
        (CROSSENTROPY(), "softmax", False),
        ("sparse_categorical_crossentropy", "softmax", False),
    ],
    ids=["logits", "probabilities", "name"],
)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["all", "weights"])
def test_classifier(loss, activation, logits, weights):
    model = make(loss, activation=activation)
    found = run(model, X, LABELS, weights)
    expected = by_definition(mean_of(model, logits), weights)
    assert set(found) == {*expected, "ece"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
    assert 0 < found["ece"] < 1
    # There is noise, which the mean weights do not have.
    outputs = model.predict(X, verbose=0)
    p = special.softmax(outputs, -1) if logits else outputs
    assert abs(found["nll"] - by_definition(p, weights)["nll"]) > 1e-4


def test_one_hot_and_binary_labels():
    model = make(keras.losses.CategoricalCrossentropy(from_logits=True))
    expected = by_definition(mean_of(model, True))
    found = run(model, X, np.eye(3)[LABELS])
    np.testing.assert_allclose(found["loss"], expected["nll"], rtol=1e-4)
    np.testing.assert_allclose(found["nll"], expected["nll"], rtol=1e-4)
    model = make(keras.losses.BinaryCrossentropy(from_logits=True), 1)
    y = LABELS == 1
    p = mean_of(model, True)[:, 0]
    nll = -np.log(np.where(y, p, 1 - p)).mean()
    found = run(model, X, y.astype("float32"))
    np.testing.assert_allclose([found["loss"], found["nll"]], nll, rtol=1e-4)
    np.testing.assert_allclose(found["accuracy"], np.mean((p > 0.5) == y))


@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError()])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["all", "weights"])
def test_regression(loss, weights):
    model = make(loss, 1)
    found = run(model, X, X[:, 0], weights)
    errors = (mean_of(model)[:, 0] - X[:, 0]) ** 2
    expected = np.mean(errors if weights is None else errors * weights)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    assert set(found) == {"loss", "std"} and found["std"] > 0


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(12 * index, 12 * index + 12)
        return X[rows], LABELS[rows], WEIGHTS[rows]


def datasets():
    yield Batches()
    yield (Batches()[number] for number in range(4))
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        yield tf.data.Dataset.from_tensor_slices((X, LABELS, WEIGHTS)).batch(7)
    if importlib.util.find_spec("torch"):
        import torch

        data = torch.utils.data.TensorDataset(
            *map(torch.tensor, (X, LABELS, WEIGHTS))
        )
        yield torch.utils.data.DataLoader(data, batch_size=9)


def test_data_sets_with_labels():
    model = make(CROSSENTROPY(from_logits=True))
    expected = run(model, X, LABELS, WEIGHTS)
    for data in datasets():
        found = run(model, data)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4)


def test_steps():
    model = make("mse", 1)
    y = X[:, 0]
    batches = ((X[n : n + 8], y[n : n + 8]) for n in range(0, 40, 8))
    found = run(model, batches, steps=2)
    np.testing.assert_allclose(
        found["loss"], run(model, X[:16], y[:16])["loss"], rtol=1e-5
    )


def test_refused():
    model = make("mse", 1)
    with pytest.raises(ValueError, match="argument `y`.*no data set"):
        evaluate(model, X)
    with pytest.raises(ValueError, match="argument `y`.*data set, which has"):
        evaluate(model, Batches(), LABELS)
    with pytest.raises(ValueError, match="argument `y`.*40 examples"):
        run(model, X, LABELS[:7])
    with pytest.raises(ValueError, match="argument `x`.*with labels"):
        run(model, ((X,) for _ in range(2)))
    inputs = keras.Input((4,))
    outputs = keras_vdrop.VariationalDense(2, num_examples=4)(inputs)
    several = keras.Model(inputs, [outputs, outputs])
    with pytest.raises(ValueError, match="argument `model`.*compiled with one"):
        evaluate(several, X, LABELS)
    several.compile("sgd", ["mse", "mse"])
    with pytest.raises(ValueError, match="argument `model`.*one output"):
        evaluate(several, X, LABELS)
    several.compile("sgd", "mse")
    with pytest.raises(ValueError, match="argument `model`.*one output"):
        run(several, X, LABELS)
