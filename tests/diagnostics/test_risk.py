"""Risk and coverage, against numpy."""

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.diagnostics.metrics import AreaUnderRiskCoverage

pytest.importorskip("matplotlib")

GENERATOR = np.random.default_rng(0)


def data(examples=3000, classes=4):
    logits = 4 * GENERATOR.normal(size=(examples, classes))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = [GENERATOR.choice(classes, p=row) for row in p]
    return p.astype("float32"), np.array(labels)


def area(wrong, doubt, weights=None):
    """The mean of the error rates of the 1, 2, 3... surest examples."""
    order = np.argsort(doubt, kind="stable")
    weights = np.ones(len(wrong)) if weights is None else weights
    kept = np.cumsum(weights[order])
    risks = np.cumsum((weights * wrong)[order]) / kept
    return np.average(risks, weights=weights[order])


@pytest.mark.parametrize("weighted", [False, True])
def test_against_the_definition(weighted):
    p, labels = data()
    weights = GENERATOR.random(3000).astype("float32") if weighted else None
    metric = AreaUnderRiskCoverage()
    for rows in np.split(np.arange(3000), 3):
        own = None if weights is None else weights[rows]
        metric.update_state(labels[rows], p[rows], own)
    expected = area(p.argmax(-1) != labels, 1 - p.max(-1), weights)
    # A bin is 2.3% of a probability wide.
    np.testing.assert_allclose(float(metric.result()), expected, rtol=0.01)


def test_limits():
    p = np.full((100, 2), [0.8, 0.2], "float32")
    labels = np.arange(100) % 4 == 0
    metric = AreaUnderRiskCoverage()
    metric.update_state(labels.astype("int32"), p)
    # A confidence that says nothing.
    np.testing.assert_allclose(float(metric.result()), 0.25, rtol=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0
    # All errors last: the integral of (c - 0.75) / c from 0.75 to 1.
    p[labels] = [0.6, 0.4]
    metric.update_state(labels.astype("int32"), p)
    expected = 0.25 + 0.75 * np.log(0.75)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-4)


def test_very_sure_predictions_have_an_order():
    """Where 1 - confidence is zero in float32."""
    doubt = np.array([1e-9, 1e-8, 1e-7, 1e-6], "float32")
    p = np.stack([1 - doubt, doubt], -1)
    metric = AreaUnderRiskCoverage()
    metric.update_state([0, 0, 0, 1], p)
    expected = 0.25 + 0.75 * np.log(0.75)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-4)


def test_in_compile():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
    model.compile("sgd", "mse", metrics=[AreaUnderRiskCoverage()])
    p, labels = data(500)
    x = np.log(p)
    found = model.evaluate(
        x, np.eye(4)[labels], batch_size=77, verbose=0, return_dict=True
    )
    expected = area(p.argmax(-1) != labels, 1 - p.max(-1))
    np.testing.assert_allclose(found["aurc"], expected, rtol=0.02)


def test_curve():
    p, labels = data(200)
    wrong, doubt = p.argmax(-1) != labels, 1 - p.max(-1).astype("float64")
    other = GENERATOR.random(200)
    figure = keras_vdrop.plot_risk_coverage(
        labels, {"a": p, "b": p}, uncertainty={"b": other}
    )
    lines = figure.axes[0].get_lines()
    for line, values, name in zip(lines, (doubt, other), "ab", strict=True):
        coverage, risk = line.get_data()
        order = np.argsort(values, kind="stable")
        expected = np.cumsum(wrong[order]) / np.arange(1, 201)
        np.testing.assert_allclose(coverage, np.arange(1, 201) / 200)
        np.testing.assert_allclose(risk, expected)
        shown = line.get_label()
        assert shown.startswith(f"{name}, area ")
        found = float(shown.split()[-1])
        np.testing.assert_allclose(found, area(wrong, values), rtol=0.02)
    logits = keras_vdrop.plot_risk_coverage(labels, np.log(p), from_logits=True)
    np.testing.assert_allclose(
        logits.axes[0].get_lines()[0].get_data()[1], lines[0].get_data()[1]
    )


def test_equally_sure_predictions_are_kept_together():
    p = np.array([0.9, 0.9, 0.6, 0.6], "float32")
    figure = keras_vdrop.plot_risk_coverage([0, 1, 1, 0], p)
    coverage, risk = figure.axes[0].get_lines()[0].get_data()
    np.testing.assert_allclose(coverage, [0.5, 1.0])
    np.testing.assert_allclose(risk, [0.5, 0.5])


def test_curve_refused():
    p, labels = data(10)
    plot = keras_vdrop.plot_risk_coverage
    for arguments, name in (
        ((labels, {}), "y_pred"),
        ((labels[:3], p), "y"),
        ((labels, p, np.ones(3)), "uncertainty"),
        ((labels, {"a": p}, {"b": p[:, 0]}), "uncertainty"),
    ):
        with pytest.raises(ValueError, match=f"argument `{name}`"):
            plot(*arguments)


def test_least_sure():
    doubt = GENERATOR.permutation(20)
    worst = np.argsort(-doubt)
    for shape in ((6, 6), (6, 6, 1), (6, 6, 3)):
        images = GENERATOR.random((20, *shape))
        figure = keras_vdrop.plot_least_sure(
            images, doubt, number=5, titles=list("abcdefghijklmnopqrst")
        )
        for place, index in enumerate(worst[:5]):
            axes = figure.axes[place]
            assert axes.get_title().startswith(f"{index}: {doubt[index]}")
            assert axes.get_title().endswith("abcdefghijklmnopqrst"[index])
            shown = axes.get_images()[0].get_array()
            np.testing.assert_allclose(shown, np.squeeze(images[index]))
    rows = GENERATOR.normal(size=(20, 4))
    figure = keras_vdrop.plot_least_sure(rows, doubt, number=50)
    shown = figure.axes[0].get_images()[0].get_array()
    expected = (rows - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(shown, expected[worst])
    for arguments, name in (
        ((images, doubt[:3]), "uncertainty"),
        ((images, doubt, 0), "number"),
        ((images, doubt, 4, ["a"]), "titles"),
        ((GENERATOR.random((20, 6, 6, 2)), doubt), "x"),
    ):
        with pytest.raises(ValueError, match=f"argument `{name}`"):
            keras_vdrop.plot_least_sure(*arguments)
