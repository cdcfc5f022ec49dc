"""Metrics of sampled predictions, against numpy."""

import importlib.util

import keras
import numpy as np
import pytest
from scipy import special
from scipy import stats

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
    assert set(found) == {*expected, "aurc", "ece"}
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


def test_regression_with_its_noise():
    model = make(keras_vdrop.losses.GaussianNegativeLogLikelihood(), 2)
    y = X[:, 0] + GENERATOR.normal(size=40).astype("float32")
    for weights in (None, WEIGHTS):
        found = run(model, X, y, weights)
        predicted = keras_vdrop.predict(
            model,
            X,
            8,
            likelihood="gaussian",
            keep_samples=True,
            seed=3,
            verbose=0,
        )
        mean, log_variance = (
            predicted.samples.astype("float64")[..., 0],
            (predicted.samples.astype("float64")[..., 1]),
        )
        std = np.exp(0.5 * log_variance)
        density = stats.norm.pdf(y, mean, std).mean(0)
        total = np.sqrt((mean**2 + std**2).mean(0) - mean.mean(0) ** 2)
        one = -stats.norm.logpdf(y, mean.mean(0), total)
        squares = (y - mean.mean(0)) ** 2
        # Whether a target is inside follows from the distribution function.
        share = stats.norm.cdf(y, mean, std).mean(0)
        inside = (share > 0.05) & (share < 0.95)
        w = np.ones(40) if weights is None else weights
        expected = {
            "nll": np.average(-np.log(density), weights=w),
            "rmse": np.sqrt(np.average(squares, weights=w)),
            "coverage": np.average(inside, weights=w),
            "std": total.mean(),
            "loss": np.mean(w * one),
        }
        assert set(found) == {*expected, "interval_score"}
        for name, value in expected.items():
            np.testing.assert_allclose(
                found[name], value, rtol=1e-4, err_msg=name
            )


def test_several_outputs():
    x = keras.Input((4,))
    hidden = keras_vdrop.VariationalDense(5, rate=0.4, num_examples=40)(x)
    layers = [
        keras.layers.Dense(3, name="label"),
        keras.layers.Dense(2, name="level"),
        keras.layers.Dense(1, name="rest"),
    ]
    losses = {
        "label": CROSSENTROPY(from_logits=True),
        "level": keras_vdrop.losses.GaussianNegativeLogLikelihood(),
        "rest": "mse",
    }
    shares = {"label": 1.0, "level": 0.5, "rest": 2.0}
    y = {"label": LABELS, "level": X[:, :1], "rest": X[:, 1:2]}
    alone = {}
    for layer in layers:
        model = keras.Model(x, layer(hidden))
        model.compile("sgd", losses[layer.name])
        for key, value in run(model, X, y[layer.name], WEIGHTS).items():
            alone[f"{layer.name}_{key}"] = value
    loss = sum(shares[n] * alone[f"{n}_loss"] for n in shares)
    outputs = {layer.name: layer(hidden) for layer in layers}
    model = keras.Model(x, outputs)
    model.compile("sgd", losses, loss_weights=shares)
    found = run(model, X, y, WEIGHTS)
    again = run(model, X, y, {name: WEIGHTS for name in y})
    assert set(found) == {*alone, "loss"}
    for name, value in {**alone, "loss": loss}.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(again[name], value, rtol=1e-4)
    # As lists, of which one output has no loss.
    listed = keras.Model(x, list(outputs.values()))
    listed.compile("sgd", [losses["label"], None, "mse"])
    found = run(listed, X, list(y.values()), WEIGHTS)
    names = listed.output_names
    np.testing.assert_allclose(
        found[f"{names[0]}_nll"], alone["label_nll"], rtol=1e-4
    )
    assert not any(name.startswith(names[1]) for name in found)


def test_masks_and_weights_of_positions():
    """As Keras weighs them: `evaluate` of a model with hardly any noise."""
    layers = [
        keras.layers.Masking(),
        keras_vdrop.VariationalDense(3, rate=1e-12, num_examples=40),
    ]
    model = keras.Sequential([keras.Input((5, 4)), *layers])
    model.compile(
        "sgd",
        CROSSENTROPY(from_logits=True),
        weighted_metrics=[
            keras_vdrop.metrics.NegativeLogLikelihood(from_logits=True),
            keras_vdrop.metrics.BrierScore(from_logits=True),
        ],
    )
    x = X.reshape(8, 5, 4).copy()
    y, weights = LABELS.reshape(8, 5), WEIGHTS.reshape(8, 5)
    x[0, 2:] = x[3, 1:] = 0.0
    kl = sum(float(value) for value in model.losses)
    for sample_weight in (None, weights, np.repeat(weights[:, :1], 5, 1)):
        found = run(model, x, y, sample_weight)
        expected = model.evaluate(
            x, y, sample_weight=sample_weight, verbose=0, return_dict=True
        )
        np.testing.assert_allclose(
            found["loss"], expected["loss"] - kl, rtol=1e-3
        )
        for name in ("nll", "brier"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3)
    np.testing.assert_allclose(
        run(model, x, y, weights[:, 0])["nll"],
        found["nll"],
        rtol=1e-5,
    )


def test_images_as_outputs():
    layer = keras_vdrop.VariationalConv2D(3, 1, rate=0.4, num_examples=2)
    model = keras.Sequential([keras.Input((4, 5, 4)), layer])
    model.compile("sgd", CROSSENTROPY(from_logits=True))
    x, y = X.reshape(2, 4, 5, 4), LABELS.reshape(2, 4, 5)
    found = run(model, x, y)
    p = keras_vdrop.predict(model, x, 8, from_logits=True, seed=3, verbose=0)
    expected = by_definition(p.mean.reshape(40, 3))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)


def test_dropout_and_ensemble():
    def plain():
        layers = [keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", CROSSENTROPY(from_logits=True))
        return model

    models = [plain() for _ in range(3)]
    p = special.softmax([m.predict(X, verbose=0) for m in models], -1).mean(0)
    found = run(models, X, LABELS)
    for name, value in by_definition(p).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)
    dropped = keras_vdrop.predict(
        models[0], X, 8, from_logits=True, dropout=True, seed=3, verbose=0
    ).mean
    found = run(models[0], X, LABELS, dropout=True)
    for name, value in by_definition(dropped).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)
    with pytest.raises(ValueError, match="`dropout=True`"):
        run(models[0], X, LABELS)


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
    with pytest.raises(ValueError, match="argument `y`.*list or dict"):
        evaluate(several, X, LABELS)
    several.compile("sgd", "mse")
    with pytest.raises(ValueError, match="argument `model`.*one output"):
        run(several, X, LABELS)
