"""The picture of reliability, against numpy."""

import sys

import numpy as np
import pytest

import keras_vdrop


def data():
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(200, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = generator.integers(3, size=200)
    return logits, probabilities, labels


def curve(figure, number=0):
    """Confidence, accuracy and standard error of each point drawn."""
    bars = figure.axes[0].containers[number]
    x, y = bars.lines[0].get_data()
    segments = np.array(bars.lines[2][0].get_segments())
    return x, y, (segments[:, 1, 1] - segments[:, 0, 1]) / 2


@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("one_hot", [True, False])
def test_points_against_numpy(from_logits, one_hot):
    logits, probabilities, labels = data()
    figure = keras_vdrop.plot_reliability(
        np.eye(3)[labels] if one_hot else labels,
        logits if from_logits else probabilities,
        from_logits=from_logits,
        num_bins=5,
    )
    confidence = probabilities.max(-1)
    correct = probabilities.argmax(-1) == labels
    expected, shares = [], []
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (confidence >= low) & (confidence < low + 0.2)
        shares.append(inside.mean())
        if inside.any():
            share, count = correct[inside].mean(), inside.sum()
            more = (share * count + 1) / (count + 2)
            error = np.sqrt(more * (1 - more) / (count + 2))
            expected.append((confidence[inside].mean(), share, error))
    # Of three classes the likeliest has a third at least.
    assert len(expected) == 4
    drawn = np.transpose(curve(figure))
    np.testing.assert_allclose(drawn, expected, rtol=1e-4)
    drawn, edges, _ = figure.axes[1].patches[0].get_data()
    np.testing.assert_allclose(drawn, shares, rtol=1e-5)
    np.testing.assert_allclose(edges, np.linspace(0, 1, 6))


def test_several_predictions_and_their_errors(tmp_path):
    _, probabilities, labels = data()
    sure = np.eye(3)[labels]
    figure = keras_vdrop.plot_reliability(
        labels, {"poor": probabilities, "sure": sure}
    )
    names = [text.get_text() for text in figure.legends[0].texts]
    metric = keras_vdrop.metrics.ExpectedCalibrationError()
    metric.update_state(labels, probabilities)
    poor = float(metric.result())
    assert poor > 0.1
    assert names == [
        "calibrated",
        f"poor, error {poor:.3f}",
        "sure, error 0.000",
    ]
    x, y, _ = curve(figure, 1)
    assert list(x) == list(y) == [1.0]
    figure.savefig(tmp_path / "reliability.png")


@pytest.mark.parametrize("rank", [1, 2])
def test_two_classes_in_one_column(rank):
    labels = np.array([0, 1, 1, 1])
    second = np.array([[0.2], [0.9], [0.9], [0.3]])
    second = second if rank == 2 else second[:, 0]
    figure = keras_vdrop.plot_reliability(labels, second, num_bins=10)
    x, y, _ = curve(figure)
    np.testing.assert_allclose(x, [0.7, 0.8, 0.9], rtol=1e-5)
    np.testing.assert_allclose(y, [0, 1, 1])


def test_positions_of_sequences_are_examples():
    _, probabilities, labels = data()
    flat = keras_vdrop.plot_reliability(labels, probabilities)
    shaped = keras_vdrop.plot_reliability(
        labels.reshape(20, 10), probabilities.reshape(20, 10, 3)
    )
    np.testing.assert_allclose(curve(shaped), curve(flat), rtol=1e-5)


def test_what_can_be_seen_to_be_wrong_is_refused():
    logits, probabilities, labels = data()
    with pytest.raises(ValueError, match="from_logits=True"):
        keras_vdrop.plot_reliability(labels, logits)
    with pytest.raises(ValueError, match="labels from 0 to 2"):
        keras_vdrop.plot_reliability(labels + 1, probabilities)


@pytest.mark.parametrize(
    ("predictions", "options"),
    [
        (np.ones((3, 2)), {}),
        (np.ones(3), {}),
        (np.float32(1), {}),
        (np.ones((0, 2)), {}),
        ({}, {}),
        (np.ones((4, 2)), {"num_bins": 0}),
        (np.ones((4, 2)), {"from_logits": "yes"}),
    ],
)
def test_bad_arguments_are_refused(predictions, options):
    with pytest.raises(ValueError, match="Expected"):
        keras_vdrop.plot_reliability(np.zeros(4, int), predictions, **options)


def test_without_matplotlib_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="`plot_reliability` draws"):
        keras_vdrop.plot_reliability(np.zeros(4, int), np.ones((4, 2)))
