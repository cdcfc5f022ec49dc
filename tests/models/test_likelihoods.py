"""Predictions of regressions and of several outputs, in closed form."""

import keras
import numpy as np
import pytest
from scipy import integrate
from scipy import optimize
from scipy import special
from scipy import stats

import keras_vdrop
from keras_vdrop.models import mixture

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 3)).astype("float32")


def run(model, x, **arguments):
    arguments = {"verbose": 0, "seed": 1, "num_samples": 16, **arguments}
    return keras_vdrop.predict(model, x, **arguments)


def regression(features=1):
    layer = keras_vdrop.VariationalDense(2 * features, rate=0.4)
    return keras.Sequential([keras.Input((3,)), layer])


def components(found):
    mean, log_variance = np.split(found.samples.astype("float64"), 2, -1)
    return mean, np.exp(0.5 * log_variance)


@pytest.mark.parametrize("features", [1, 2])
def test_parts_of_the_deviation(features):
    model = regression(features)
    found = run(model, X, likelihood="gaussian", keep_samples=True)
    mean, std = components(found)
    assert found.samples.shape == (16, 12, 2 * features)
    np.testing.assert_allclose(found.mean, mean.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.weights_std, mean.std(0), rtol=1e-4)
    data = np.sqrt((std**2).mean(0))
    np.testing.assert_allclose(found.data_std, data, rtol=1e-4)
    second = (mean**2 + std**2).mean(0)
    np.testing.assert_allclose(
        found.std, np.sqrt(second - mean.mean(0) ** 2), rtol=1e-4
    )
    # In parts of the data, without the samples.
    again = run(model, X, likelihood="gaussian", batch_size=5)
    assert again.samples is None
    np.testing.assert_allclose(again.std, found.std, rtol=1e-4)


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.9])
def test_quantiles_of_the_mixture(q):
    model = regression()
    found = run(model, X, likelihood="gaussian", keep_samples=True)
    mean, std = components(found)
    for number in range(len(X)):
        m, s = mean[:, number, 0], std[:, number, 0]
        expected = optimize.brentq(
            lambda t, m=m, s=s: stats.norm.cdf(t, m, s).mean() - q, -50, 50
        )
        np.testing.assert_allclose(
            found.quantile(q)[number, 0], expected, rtol=1e-5, atol=1e-5
        )
    asked = run(model, X, likelihood="gaussian", quantiles=[q])
    np.testing.assert_allclose(
        asked.quantile(q), found.quantile(q), rtol=1e-5, atol=1e-6
    )


def test_quantiles_of_hard_mixtures():
    """Far apart, very different widths, a gap with no density."""
    mean = np.array([[0.0, -1e6, 0.0, 1.0], [1000.0, 1e6, 1e-3, 1.0]])
    log_variance = np.array([[0.0, -10.0, -30.0, 3.0], [0.0, 30.0, 10.0, 3.0]])
    samples = np.concatenate([mean, log_variance], -1)
    std = np.exp(0.5 * log_variance)
    for q in (1e-12, 0.2, 0.5, 0.7, 1 - 1e-9):
        found = mixture.quantile(samples, q)
        share = stats.norm.cdf(found, mean, std).mean(0)
        # Where the density is zero any point of the gap is a median.
        np.testing.assert_allclose(share, q, rtol=1e-6)
    np.testing.assert_allclose(
        mixture.quantile(samples, 0.2)[3],
        stats.norm.ppf(0.2, 1.0, std[0, 3]),
        rtol=1e-9,
    )
    assert np.all(mixture.quantile(samples, 0.0) == -np.inf)
    assert np.all(mixture.quantile(samples, 1.0) == np.inf)


def test_interval():
    model = regression()
    found = run(model, X, likelihood="gaussian", quantiles=[0.05, 0.95])
    low, high = np.moveaxis(found.interval(0.9), -1, 0)
    np.testing.assert_array_equal(low, found.quantile(0.05))
    np.testing.assert_array_equal(high, found.quantile(0.95))
    with pytest.raises(ValueError, match=r"quantiles=\[0.25\]"):
        found.interval(0.5)
    with pytest.raises(ValueError, match="argument `level`"):
        found.interval(1.0)
    # Without a likelihood those of the samples.
    plain = run(model, X, keep_samples=True)
    np.testing.assert_allclose(
        plain.interval(0.5)[..., 1], np.quantile(plain.samples, 0.75, axis=0)
    )


def test_density_of_the_mixture():
    model = regression(2)
    found = run(model, X, likelihood="gaussian", keep_samples=True)
    mean, std = components(found)
    y = GENERATOR.normal(size=(12, 2))
    each = stats.norm.logpdf(y, mean, std).sum(-1)
    expected = special.logsumexp(each, axis=0) - np.log(16)
    np.testing.assert_allclose(found.log_likelihood(y), expected, rtol=1e-6)
    single = run(regression(), X[:1], likelihood="gaussian", keep_samples=True)
    mass, _ = integrate.quad(
        lambda t: np.exp(single.log_likelihood(np.full(1, t))).item(),
        *single.mean.item() + np.array([-12, 12]) * single.std.item(),
        limit=200,
    )
    assert abs(mass - 1) < 1e-6
    with pytest.raises(ValueError, match="keep_samples=True"):
        run(model, X, likelihood="gaussian").log_likelihood(y)
    with pytest.raises(ValueError, match=r"argument `y`.*\(12, 2\)"):
        found.log_likelihood(y[:, :1])
    with pytest.raises(ValueError, match="likelihood"):
        run(model, X, keep_samples=True).log_likelihood(y)


def test_extreme_outputs_are_finite():
    layer = keras_vdrop.VariationalDense(2, rate=1e-6, use_bias=False)
    model = keras.Sequential([keras.Input((1,)), layer])
    model(np.ones((1, 1)))
    for values in ([0.0, 1e30], [1e15, -1e30], [-3e3, 3e3]):
        layer.kernel.assign([values])
        found = run(
            model, np.ones((1, 1)), likelihood="gaussian", quantiles=[0.1, 0.9]
        )
        for name in ("mean", "std", "data_std"):
            assert np.all(np.isfinite(getattr(found, name)))
        assert np.all(np.isfinite(found.interval(0.8)))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_extreme_logits():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Identity()])
    big = float(np.finfo("float32").max)
    logits = np.array([[big, -big, 0.0], [-big] * 3, [big, big, 0.0]])
    found = run([model], logits, likelihood="logits")
    third = 1 / 3
    expected = [[1.0, 0.0, 0.0], [third] * 3, [0.5, 0.5, 0.0]]
    np.testing.assert_allclose(found.mean, expected, rtol=1e-6)
    entropies = [0.0, np.log(3), np.log(2)]
    np.testing.assert_allclose(found.entropy, entropies, rtol=1e-6)


def several():
    """A classifier of each position and a regression, with their names."""
    x = keras.Input((4, 3))
    hidden = keras_vdrop.VariationalDense(5, activation="tanh", rate=0.4)(x)
    outputs = {
        "tags": keras.layers.Dense(3)(hidden),
        "level": keras.layers.Dense(2)(hidden[:, 0]),
        "other": keras.layers.Dense(6)(hidden),
    }
    return keras.Model(x, outputs)


def test_each_output_has_its_likelihood():
    model = several()
    x = GENERATOR.normal(size=(7, 4, 3)).astype("float32")
    likelihood = {"tags": "logits", "level": "gaussian"}
    found = run(
        model, x, likelihood=likelihood, keep_samples=True, quantiles=[0.5]
    )
    p = found.samples["tags"].astype("float64")
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    entropy = stats.entropy(p.mean(0), axis=-1)
    assert entropy.shape == (7, 4)
    np.testing.assert_allclose(found.entropy["tags"], entropy, rtol=1e-4)
    assert found.entropy["level"] is None and found.entropy["other"] is None
    assert found.data_std["tags"] is None
    assert found.mean["level"].shape == found.data_std["level"].shape == (7, 1)
    assert found.mean["other"].shape == (7, 4, 6)
    np.testing.assert_allclose(
        found.per_example(found.entropy)["tags"], entropy.mean(-1), rtol=1e-4
    )
    # A list of outputs, by their names and by their places.
    listed = keras.Model(model.input, list(model.output.values()))
    names = listed.output_names
    as_dict = {names[0]: "logits", names[1]: "gaussian"}
    for likelihood in (["logits", "gaussian", None], as_dict):
        again = run(listed, x, likelihood=likelihood)
        np.testing.assert_allclose(
            again.data_std[1], found.data_std["level"], rtol=1e-4
        )
    for wrong in ({"tag": "logits"}, ["logits"], "normal", {"tags": "mse"}):
        with pytest.raises(ValueError, match="argument `likelihood`"):
            run(model, x, likelihood=wrong)


def test_log_likelihood_of_labels():
    model = keras.Sequential(
        [keras.Input((3,)), keras_vdrop.VariationalDense(4)]
    )
    found = run(model, X, from_logits=True)
    labels = np.arange(12) % 4
    expected = np.log(found.mean[np.arange(12), labels])
    for y in (labels, labels[:, None], np.eye(4)[labels]):
        np.testing.assert_allclose(found.log_likelihood(y), expected, rtol=1e-6)
    for y in (labels + 1, labels[:5], labels + 0.5):
        with pytest.raises(ValueError, match="argument `y`"):
            found.log_likelihood(y)
    two = keras.Sequential([keras.Input((3,)), keras_vdrop.VariationalDense(1)])
    found = run(two, X, from_logits=True)
    p = np.where(labels % 2, found.mean[:, 0], 1 - found.mean[:, 0])
    np.testing.assert_allclose(
        found.log_likelihood(labels % 2), np.log(p), rtol=1e-4
    )


def test_masked_positions_do_not_count():
    x = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [1, 2, 3, 4, 5]])
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(6, 4, mask_zero=True),
            keras_vdrop.VariationalDense(3, rate=0.4),
        ]
    )
    for batch_size in (1, 3):
        found = run(model, x, from_logits=True, batch_size=batch_size)
        np.testing.assert_array_equal(found.mask, x > 0)
        values = found.mutual_information
        expected = [values[n][x[n] > 0].mean() for n in range(3)]
        np.testing.assert_allclose(
            found.per_example(values), expected, rtol=1e-5
        )
    whole = run(model, x[2:], from_logits=True)
    assert whole.mask is None


def test_images_as_outputs():
    layer = keras_vdrop.VariationalConv2D(3, 1, rate=0.4)
    model = keras.Sequential([keras.Input((4, 5, 2)), layer])
    x = GENERATOR.normal(size=(6, 4, 5, 2)).astype("float32")
    found = run(model, x, from_logits=True)
    assert found.entropy.shape == found.mutual_information.shape == (6, 4, 5)
    np.testing.assert_allclose(
        found.per_example(found.entropy), found.entropy.mean((1, 2)), rtol=1e-5
    )
    # A regression of images, with a noise of each channel.
    layers = [keras_vdrop.VariationalConv2D(2, 1, rate=0.4)]
    layers.append(keras_vdrop.layers.ObservationNoise(0.5))
    model = keras.Sequential([keras.Input((4, 5, 2)), *layers])
    found = run(model, x, likelihood="gaussian", quantiles=[0.5])
    assert found.mean.shape == (6, 4, 5, 2)
    np.testing.assert_allclose(found.data_std, 0.5, rtol=1e-5)
    np.testing.assert_allclose(
        found.std, np.hypot(found.weights_std, 0.5), rtol=1e-4
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_probabilities_of_half_precision(dtype):
    """As in single precision, up to the rounding of the probabilities."""
    layer = keras_vdrop.VariationalDense(30, rate=0.3)
    softmax = keras.layers.Softmax(dtype=dtype)
    model = keras.Sequential([keras.Input((3,)), layer, softmax])
    found = run(model, 3 * X, from_logits=False)
    logits = keras.Sequential([keras.Input((3,)), layer])
    exact = run(logits, 3 * X, from_logits=True)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert found.mean.dtype == found.entropy.dtype == "float32"
    np.testing.assert_allclose(found.mean.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.mean, exact.mean, rtol=4 * unit, atol=1e-6)
    for name in ("entropy", "expected_entropy", "mutual_information"):
        # The derivative of the entropy is log p, here at most 15.
        np.testing.assert_allclose(
            getattr(found, name), getattr(exact, name), atol=15 * unit
        )
        assert np.all(getattr(found, name) >= 0)


def test_refused():
    model = regression()
    with pytest.raises(ValueError, match="`from_logits`.*None with"):
        run(model, X, likelihood="gaussian", from_logits=True)
    with pytest.raises(ValueError, match="data_std|likelihood=.gaussian"):
        _ = run(model, X).data_std
    with pytest.raises(ValueError, match="from_logits=True"):
        _ = run(model, X, likelihood="gaussian").entropy
    odd = keras.Sequential([keras.Input((3,)), keras_vdrop.VariationalDense(3)])
    with pytest.raises(ValueError, match="log variances.*shape"):
        run(odd, X, likelihood="gaussian")
