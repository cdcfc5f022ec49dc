"""The likelihood of a regression, against scipy."""

import keras
import numpy as np
import pytest
from scipy import stats

import keras_vdrop
from keras_vdrop.core.losses import GaussianNegativeLogLikelihood
from keras_vdrop.layers import ObservationNoise

GENERATOR = np.random.default_rng(0)


def outputs(*shape, dtype="float32"):
    mean = GENERATOR.normal(size=shape)
    log_variance = GENERATOR.normal(size=shape)
    y = mean + np.exp(0.5 * log_variance) * GENERATOR.normal(size=shape)
    both = np.concatenate([mean, log_variance], -1).astype(dtype)
    return y.astype(dtype), both


def by_scipy(y, both):
    mean, log_variance = np.split(both.astype("float64"), 2, axis=-1)
    std = np.exp(0.5 * log_variance)
    return -stats.norm.logpdf(y.astype("float64"), mean, std).sum(-1)


@pytest.mark.parametrize("shape", [(20, 1), (20, 3), (5, 7, 2), (4, 3, 3, 1)])
def test_against_scipy(shape):
    y, both = outputs(*shape)
    expected = by_scipy(y, both)
    loss = GaussianNegativeLogLikelihood()
    np.testing.assert_allclose(
        float(loss(y, both)), expected.mean(), rtol=1e-5, atol=1e-6
    )
    weights = GENERATOR.random(shape[0]).astype("float32")
    spread = weights.reshape(-1, *[1] * (len(shape) - 2))
    np.testing.assert_allclose(
        float(loss(y, both, sample_weight=spread)),
        (spread * expected).mean(),
        rtol=1e-5,
        atol=1e-6,
    )
    each = GaussianNegativeLogLikelihood(reduction="none")(y, both)
    np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)


def test_targets_without_an_axis_of_features():
    y, both = outputs(20, 1)
    loss = GaussianNegativeLogLikelihood()
    assert float(loss(y[:, 0], both)) == float(loss(y, both))


def test_low_precision():
    y, both = outputs(200, 2)
    for dtype, rtol in (("float16", 2e-3), ("bfloat16", 2e-2)):
        half = keras.ops.cast(both, dtype)
        found = GaussianNegativeLogLikelihood(dtype=dtype)(y, half)
        assert keras.backend.standardize_dtype(found.dtype) == "float32"
        np.testing.assert_allclose(float(found), by_scipy(y, both).mean(), rtol)


LARGEST = float(np.finfo("float32").max)
EXTREMES = [0.0, 1.0, 60.0, 1e4, 65504.0, 1e15, 1e30, LARGEST]
EXTREMES += [-x for x in EXTREMES[1:]]


class Outputs(keras.Model):
    """Its outputs are its weights."""

    def __init__(self, values):
        super().__init__()
        self.values = self.add_weight(
            shape=values.shape, initializer="zeros", name="values"
        )
        self.values.assign(values)

    def call(self, inputs):
        return self.values + 0 * inputs


def gradients(y, both):
    """The loss, and the outputs after a step of SGD of rate 1."""
    model = Outputs(both)
    model.compile(
        keras.optimizers.SGD(1.0), GaussianNegativeLogLikelihood("sum")
    )
    x = np.zeros((len(y), 1), "float32")
    history = model.fit(x, y, batch_size=len(y), shuffle=False, verbose=0)
    return history.history["loss"][0], np.array(model.values)


def test_every_finite_output_is_safe():
    mean, log_variance, y = np.meshgrid(EXTREMES, EXTREMES, [0.0, 3.0, LARGEST])
    both = np.stack([mean.ravel(), log_variance.ravel()], -1)
    both, y = both.astype("float32"), y.reshape(-1, 1).astype("float32")
    loss, after = gradients(y, both)
    assert np.isfinite(loss) and np.all(np.isfinite(after))
    values = GaussianNegativeLogLikelihood("none")(y, both)
    assert np.all(np.isfinite(np.array(values)))
    # A log variance that is out of range is led back, and no further out.
    low = both[:, 1] < -50
    high = both[:, 1] > 50
    assert np.all(after[low, 1] >= both[low, 1])
    assert np.all(after[high, 1] <= both[high, 1])


def test_gradients_against_the_closed_form():
    y, both = outputs(40, 1)
    _, after = gradients(y, both)
    mean, log_variance = both.astype("float64").T
    precision = np.exp(-log_variance)
    difference = y[:, 0] - mean
    by_mean = -difference * precision
    by_log_variance = 0.5 * (1 - difference**2 * precision)
    expected = both - np.stack([by_mean, by_log_variance], -1)
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)


def test_far_away_it_is_continuous():
    distances = np.array([[0.99e4], [1e4], [1.01e4]], "float32")
    both = np.zeros((3, 2), "float32")
    found = np.array(GaussianNegativeLogLikelihood("none")(distances, both))
    np.testing.assert_allclose(found, 0.5 * distances[:, 0] ** 2, rtol=1e-3)
    assert np.all(np.diff(found) > 0)


@pytest.mark.parametrize(
    "optimizer",
    [
        "adam",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("sgd", "rmsprop")),
    ],
)
def test_one_noise_is_learned(optimizer, tmp_path):
    """Its standard error is that of a standard deviation."""
    x = GENERATOR.normal(size=(2000, 1)).astype("float32")
    noise = GENERATOR.normal(size=(2000, 2)) * [0.3, 2.0]
    y = np.concatenate([2 * x, -x], -1) + noise
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(2), ObservationNoise()]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.05, 2000)
    optimizer = keras.optimizers.get(optimizer)
    optimizer.learning_rate = rate
    model.compile(optimizer, GaussianNegativeLogLikelihood())
    model.fit(x, y.astype("float32"), batch_size=50, epochs=50, verbose=0)
    design = np.concatenate([x, np.ones_like(x)], -1)
    _, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    found = model.layers[-1].learned_stddev()
    np.testing.assert_allclose(found, np.sqrt(residual / 2000), rtol=0.02)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.loss, GaussianNegativeLogLikelihood)
    np.testing.assert_array_equal(loaded.layers[-1].learned_stddev(), found)
    np.testing.assert_array_equal(
        loaded.predict(x[:4], verbose=0), model.predict(x[:4], verbose=0)
    )


def test_known_noise_and_a_predicted_one():
    layer = ObservationNoise(3.0, trainable=False)
    found = np.array(layer(np.ones((2, 4, 3), "float32")))
    assert found.shape == (2, 4, 6) and not layer.trainable_variables
    np.testing.assert_allclose(found[..., 3:], np.log(9.0), rtol=1e-6)
    assert layer.compute_output_shape((None, 4, 3)) == (None, 4, 6)


def test_half_precision_trains():
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, dtype="mixed_float16"),
            ObservationNoise(dtype="mixed_float16"),
        ]
    )
    model.compile("adam", GaussianNegativeLogLikelihood())
    x = GENERATOR.normal(size=(64, 1)).astype("float32")
    history = model.fit(x, 100 * x, epochs=2, verbose=0).history["loss"]
    assert np.all(np.isfinite(history)) and history[1] < history[0]


def test_refused():
    loss = GaussianNegativeLogLikelihood()
    with pytest.raises(ValueError, match="`y_pred`.*ObservationNoise"):
        loss(np.zeros((4, 1)), np.zeros((4, 1)))
    # It would broadcast.
    with pytest.raises(ValueError, match="`y_true`.*1 feature"):
        loss(np.zeros((4, 4)), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="`y_true`.*2 feature"):
        loss(np.zeros(4), np.zeros((4, 4)))
    with pytest.raises(ValueError, match="`stddev`"):
        ObservationNoise(0.0)
    with pytest.raises(ValueError, match="`input_shape`"):
        ObservationNoise().build((None, None))


def test_masks():
    y, both = outputs(3, 4, 1)
    mask = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
    x = np.where(mask[..., None], both, 0.0).astype("float32")
    model = keras.Sequential([keras.Input((4, 2)), keras.layers.Masking()])
    model.compile("sgd", GaussianNegativeLogLikelihood())
    found = model.evaluate(x, y, verbose=0)
    expected = by_scipy(y, both)[mask].mean()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_kl_has_the_weight_of_a_likelihood():
    """The loss is the NLL of an example, summed over its features."""
    layer = keras_vdrop.VariationalDense(4, num_examples=10)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", GaussianNegativeLogLikelihood())
    x = GENERATOR.normal(size=(10, 3)).astype("float32")
    y = GENERATOR.normal(size=(10, 2)).astype("float32")
    expected = by_scipy(y, model.predict(x, verbose=0)).mean()
    expected += layer.kl() / 10
    found = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
