"""Coverage and interval score, against numpy and scipy."""

import keras
import numpy as np
import pytest
from scipy import stats

from keras_vdrop import metrics

GENERATOR = np.random.default_rng(0)
METRICS = [metrics.IntervalCoverage, metrics.IntervalScore]


def data(*shape):
    y = GENERATOR.normal(size=shape)
    ends = np.sort(GENERATOR.normal(size=(*shape, 2)), axis=-1)
    weights = GENERATOR.random(shape[0])
    return tuple(x.astype("float32") for x in (y, ends, weights))


def by_hand(name, level, y, ends):
    low, high = np.moveaxis(ends.astype("float64"), -1, 0)
    if name == "coverage":
        return (low <= y) & (y <= high)
    outside = np.where(y < low, low - y, np.where(y > high, y - high, 0))
    return high - low + 2 / (1 - level) * outside


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3), (10, 4, 2)])
def test_against_numpy(metric, level, shape):
    y, ends, weights = data(*shape)
    metric = metric(level)
    for rows in (slice(0, 7), slice(7, None)):
        metric.update_state(y[rows], ends[rows], weights[rows])
    values = by_hand(metric.name, level, y, ends).reshape(shape[0], -1)
    expected = np.average(values.mean(-1), weights=weights)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0
    again = type(metric).from_config(metric.get_config())
    assert again.level == level


def test_an_axis_of_one_feature_may_be_left_out():
    y, ends, _ = data(20)
    found = []
    for targets, intervals in (
        (y, ends),
        (y[:, None], ends),
        (y, ends[:, None]),
        (y[:, None], ends[:, None]),
    ):
        metric = metrics.IntervalScore()
        metric.update_state(targets, intervals)
        found.append(float(metric.result()))
    assert len(set(found)) == 1


@pytest.mark.parametrize("metric", METRICS)
def test_gaussian_outputs(metric):
    mean, log_variance = GENERATOR.normal(size=(2, 30, 2))
    y = GENERATOR.normal(size=(30, 2))
    std = np.exp(0.5 * log_variance)
    ends = np.stack(stats.norm.interval(0.8, mean, std), -1)
    metric = metric(0.8, likelihood="gaussian")
    outputs = np.concatenate([mean, log_variance], -1).astype("float32")
    metric.update_state(y.astype("float32"), outputs)
    expected = by_hand(metric.name, 0.8, y, ends).mean()
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)


def test_a_calibrated_interval_has_the_least_score():
    y = GENERATOR.normal(size=20_000).astype("float32")
    scores = []
    for width in (0.7, 1.0, 1.4):
        ends = width * np.array(stats.norm.interval(0.9))
        metric = metrics.IntervalScore()
        metric.update_state(y, np.tile(ends, (len(y), 1)).astype("float32"))
        scores.append(float(metric.result()))
    assert scores[1] < min(scores[0], scores[2])


def test_in_compile_with_a_mask():
    y, _, _ = data(6, 3, 1)
    x = GENERATOR.normal(size=(6, 3, 2)).astype("float32")
    x[0, 1:] = x[4, 2:] = 0
    model = keras.Sequential([keras.Input((3, 2)), keras.layers.Masking()])
    metric = metrics.IntervalCoverage(0.5, likelihood="gaussian")
    model.compile("sgd", "mse", metrics=[metric])
    found = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    std = np.exp(0.5 * x[..., 1])
    ends = np.stack(stats.norm.interval(0.5, x[..., 0], std), -1)
    inside = by_hand("coverage", 0.5, y[..., 0], ends)
    expected = inside[np.any(x, axis=-1)].mean()
    np.testing.assert_allclose(found["coverage"], expected, rtol=1e-5)


def test_refused():
    metric = metrics.IntervalCoverage()
    with pytest.raises(ValueError, match="`y_pred`.*gaussian"):
        metric.update_state(np.zeros(3), np.zeros((3, 3)))
    with pytest.raises(ValueError, match="`y_true`"):
        metric.update_state(np.zeros(4), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="argument `level`"):
        metrics.IntervalScore(1.0)
    with pytest.raises(ValueError, match="argument `likelihood`"):
        metrics.IntervalScore(likelihood="normal")
