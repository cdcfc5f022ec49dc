"""Calibration, against numpy."""

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop import metrics

METRICS = [
    metrics.NegativeLogLikelihood,
    metrics.BrierScore,
    metrics.ExpectedCalibrationError,
]


def data(classes=4, examples=50):
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(examples, classes)).astype("float32")
    labels = generator.integers(classes, size=examples)
    weights = generator.random(examples).astype("float32")
    return logits, labels, weights


def softmax(logits):
    powers = np.exp(logits.astype("float64"))
    return powers / powers.sum(-1, keepdims=True)


def by_hand(name, probabilities, labels, weights):
    one_hot = np.eye(probabilities.shape[-1])[labels]
    if name == "nll":
        values = -np.log(probabilities[np.arange(len(labels)), labels])
    elif name == "brier":
        values = ((probabilities - one_hot) ** 2).sum(-1)
    else:
        confidence = probabilities.max(-1)
        correct = probabilities.argmax(-1) == labels
        total = 0.0
        for low in np.arange(15) / 15:
            inside = (confidence >= low) & (confidence < low + 1 / 15)
            gap = weights * (correct - confidence) * inside
            total += abs(gap.sum())
        return total / weights.sum()
    return (weights * values).sum() / weights.sum()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_against_numpy(metric, from_logits, one_hot, weighted):
    logits, labels, weights = data()
    weights = weights if weighted else np.ones_like(weights)
    outputs = logits if from_logits else softmax(logits).astype("float32")
    targets = np.eye(4)[labels] if one_hot else labels
    metric = metric(from_logits=from_logits)
    for rows in (slice(0, 20), slice(20, 50)):
        metric.update_state(
            targets[rows],
            outputs[rows],
            sample_weight=weights[rows] if weighted else None,
        )
    expected = by_hand(metric.name, softmax(logits), labels, weights)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_two_classes_with_one_output(metric, from_logits, rank):
    logits, labels, weights = data(classes=2)
    difference = logits[:, 1:] - logits[:, :1]
    outputs = difference if from_logits else softmax(logits)[:, 1:]
    metric = metric(from_logits=from_logits)
    targets = labels if rank == 1 else labels[:, None]
    metric.update_state(targets, outputs)
    expected = by_hand(
        metric.name, softmax(logits), labels, np.ones_like(weights)
    )
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_sequences_are_examples(metric):
    logits, labels, _ = data()
    flat, shaped = metric(from_logits=True), metric(from_logits=True)
    flat.update_state(labels, logits)
    shaped.update_state(labels.reshape(5, 10), logits.reshape(5, 10, 4))
    np.testing.assert_allclose(float(flat.result()), float(shaped.result()))


def test_certainty_stays_finite():
    metric = metrics.NegativeLogLikelihood()
    metric.update_state([0, 1], np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert np.isfinite(float(metric.result()))
    metric = metrics.ExpectedCalibrationError()
    metric.update_state([0, 1], np.array([[1.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_allclose(float(metric.result()), 0.5)


def test_a_calibrated_forecast_has_little_error():
    generator = np.random.default_rng(0)
    p = generator.random((20_000, 1)).astype("float32")
    labels = (generator.random(20_000) < p[:, 0]).astype("int32")
    metric = metrics.ExpectedCalibrationError(num_bins=10)
    metric.update_state(labels, p)
    # The mean of |normal| in five bins of 4000 examples each, five-fold.
    assert float(metric.result()) < 5 * 0.5 / np.sqrt(4000)
    metric.reset_state()
    metric.update_state(labels, p**3)
    assert float(metric.result()) > 0.1


def test_in_compile_and_in_a_file(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras_vdrop.VariationalDense(3, num_examples=20),
        ]
    )
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[metric(from_logits=True) for metric in METRICS],
    )
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    y = np.arange(20) % 3
    model.fit(x, y, validation_data=(x, y), epochs=2, verbose=0)
    found = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    probabilities = softmax(model.predict(x, verbose=0))
    for name in ("nll", "brier", "ece"):
        expected = by_hand(name, probabilities, y, np.ones(20))
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.evaluate(x, y, verbose=0, return_dict=True)
    np.testing.assert_allclose(again["ece"], found["ece"], rtol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_config(metric):
    given = metric(from_logits=True, name="other")
    copy = metric.from_config(given.get_config())
    assert copy.from_logits and copy.name == "other"
    with pytest.raises(ValueError, match="from_logits"):
        metric(from_logits="yes")
    with pytest.raises(ValueError, match="num_bins"):
        metrics.ExpectedCalibrationError(num_bins=0)


def test_errors_of_two_bins_do_not_make_up_for_each_other():
    metric = metrics.ExpectedCalibrationError()
    timid, bold = [0.55, 0.45], [0.95, 0.05]
    metric.update_state([0, 0, 0, 1], np.array([timid, timid, bold, bold]))
    np.testing.assert_allclose(float(metric.result()), 0.45, rtol=1e-5)
