"""Separable convolutions: two random kernels, whose maps apply in turn."""

import keras
import numpy as np
import pytest
from backends import gradients
from backends import operations
from cases import POSTERIORS
from cases import every_posterior

import keras_vdrop

DRAWS = 4000
# Standard errors that the largest of a few dozen deviations stays within.
SIGMAS = 5
# Class, arguments and the shape of one input.
CASES = {
    "separable_conv1d": (
        keras_vdrop.VariationalSeparableConv1D,
        {"filters": 3, "kernel_size": 2, "depth_multiplier": 2},
        (3, 2),
    ),
    "separable_conv2d": (
        keras_vdrop.VariationalSeparableConv2D,
        {
            "filters": 2,
            "kernel_size": (2, 1),
            "padding": "same",
            "dilation_rate": (1, 2),
            "depth_multiplier": 1,
        },
        (2, 2, 2),
    ),
    "separable_conv1d_channels_first": (
        keras_vdrop.VariationalSeparableConv1D,
        {"filters": 2, "kernel_size": 2, "data_format": "channels_first"},
        (2, 3),
    ),
}
KERNELS = ("depthwise_kernel", "pointwise_kernel")
ESTIMATORS = ("local", "flipout", "batch", "example")
every_case = pytest.mark.parametrize("case", CASES)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


def build(case, **arguments):
    """A built layer whose two kernels have different alphas."""
    cls, own, shape = CASES[case]
    arguments = {"num_examples": 10, "bias_initializer": "ones", **arguments}
    layer = cls(**own, **arguments)
    layer.build((None, *shape))
    for weight, rate in zip(layer.random_weights, (0.3, 0.15), strict=True):
        weight.rate = rate
        weight.reset_noise()
    inputs = np.random.default_rng(1).normal(size=(2, *shape))
    return layer, inputs.astype("float32")


def twin(layer):
    cls = layer.keras_class()
    plain = cls.from_config(cls.get_config(layer))
    plain.build(layer.get_build_config()["input_shape"])
    plain.set_weights(layer.get_weights()[: len(plain.weights)])
    return plain


def moments(layer, inputs):
    """Mean and variance of each output, by two maps of Keras in turn.

    With both kinds of noise the outputs of the first map have the covariance
    `c` between the multiples of one channel. The second map has the variance
    `theta c theta + alpha * theta**2 * (mean**2 + variance)`.
    """
    alphas = [rate / (1 - rate) for rate in (0.3, 0.15)]
    first, second = map(to_numpy, map(layer.__getattribute__, KERNELS))
    options = {"data_format": layer.data_format}

    def depthwise(x, kernel):
        found = keras.ops.depthwise_conv(
            x,
            kernel,
            strides=layer.strides,
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            **options,
        )
        return to_numpy(found)

    def pointwise(x, kernel):
        return to_numpy(keras.ops.conv(x, kernel, **options))

    mean = depthwise(inputs, first)
    variance = alphas[0] * depthwise(inputs**2, first**2)
    total = alphas[1] * pointwise(mean**2 + variance, second**2)
    if layer.noise == "independent":
        total += pointwise(variance, second**2)
    else:
        # One pair of multiples of each channel after the other.
        count = layer.depth_multiplier
        channels = second.shape[-2] // count
        rows = second.reshape(channels, count, -1)
        for one in range(count):
            for other in range(count):
                products = first[..., one : one + 1] * first[..., [other]]
                covariance = alphas[0] * depthwise(inputs**2, products)
                weights = rows[:, one] * rows[:, other]
                shape = (*second.shape[:-2], *weights.shape)
                total += pointwise(covariance, weights.reshape(shape))
    return to_numpy(twin(layer)(inputs)), total


def draw(layer, inputs, count):
    """Noisy outputs, `(count, *outputs)`, by as many examples or calls."""
    if layer.estimator in ("local", "example"):
        batch = np.tile(inputs, (count,) + (1,) * (inputs.ndim - 1))
        found = to_numpy(layer(batch, training=True)).astype("float64")
        return found.reshape(count, len(inputs), *found.shape[1:])
    first, second = (weight.generator for weight in layer.random_weights)
    inputs = keras.ops.convert_to_tensor(inputs)

    def call(keys):
        with first.hold(keys[0]), second.hold(keys[1]):
            return layer(inputs, training=True)

    keys = keras.ops.stack([first.split(count), second.split(count)], axis=1)
    return to_numpy(keras.ops.map(call, keys)).astype("float64")


SOME = [
    (case, "local", posterior) for case in CASES for posterior in POSTERIORS
]
SOME += [
    ("separable_conv1d", estimator, posterior)
    for estimator in ESTIMATORS[1:]
    for posterior in ("output", "correlated-input")
]


@pytest.mark.parametrize(
    "case, estimator, posterior",
    [
        pytest.param(
            *some,
            marks=[]
            if some in (SOME[3], ("separable_conv1d", "batch", "output"))
            else [pytest.mark.slow],
        )
        for some in SOME
    ],
)
def test_mean_and_variance(case, estimator, posterior):
    """Each estimator has the moments of one output of a weight sample."""
    count = DRAWS if estimator == "local" else 800
    layer, inputs = build(
        case, **POSTERIORS[posterior], estimator=estimator, seed=1
    )
    samples = draw(layer, inputs, count)
    mean, variance = moments(layer, inputs)
    error = np.sqrt(variance / count)
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - mean), SIGMAS * error + 1e-5
    )
    # A product of two normal variables has longer tails than one.
    fourth = ((samples - samples.mean(0)) ** 4).mean(0)
    error = np.sqrt((fourth - samples.var(0) ** 2) / count)
    np.testing.assert_array_less(
        np.abs(samples.var(0) - variance), SIGMAS * error + 1e-5
    )


@every_case
def test_inference_is_that_of_keras(case):
    layer, inputs = build(case, activation="tanh")
    plain = twin(layer)
    expected = to_numpy(plain(inputs))
    np.testing.assert_array_equal(to_numpy(layer(inputs)), expected)
    assert operations(layer, inputs, training=False) == operations(
        plain, inputs, training=False
    )


@pytest.mark.slow
@every_estimator
@every_posterior
def test_gradients_reach_everything_and_are_finite(posterior, estimator):
    layer, inputs = build("separable_conv1d", **posterior, estimator=estimator)
    inputs[0] = 0
    _, _, *found = gradients(
        lambda outputs: keras.ops.mean(keras.ops.square(outputs)), layer, inputs
    )
    assert len(found) == len(layer.trainable_variables) == 5
    for value in found:
        assert np.all(np.isfinite(value)) and np.any(value != 0)


@every_posterior
def test_kl_counts_both_kernels(posterior):
    layer, _ = build("separable_conv1d", **posterior, kl="lower_bound")
    assert len(layer.losses) == 2
    # Of log alpha: -log(alpha) / 2.
    terms = [-np.log(rate / (1 - rate)) / 2 for rate in (0.3, 0.15)]
    counts = (2 * 2 * 2, 4 * 3) if layer.noise == "independent" else (2, 4)
    np.testing.assert_allclose(layer.kl(), np.dot(terms, counts), rtol=1e-5)


@pytest.mark.parametrize("estimator", ["local", "batch"])
def test_model(estimator, tmp_path):
    """Conversion, training, files, predictions and the way back."""
    plain = keras.Sequential(
        [
            keras.Input((6, 2)),
            keras.layers.SeparableConv1D(3, 2, activation="relu"),
            keras.layers.DepthwiseConv1D(2),
            keras.layers.Conv1DTranspose(2, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    x = np.random.default_rng(0).normal(size=(32, 6, 2)).astype("float32")
    y = x[:, 0, :1]
    model = keras_vdrop.to_variational(
        plain, verbose=0, rate=0.2, estimator=estimator, seed=1
    )
    assert len(keras_vdrop.variational_layers(model)) == 4
    expected = plain.predict(x, verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    np.testing.assert_array_equal(
        keras_vdrop.to_deterministic(model).predict(x, verbose=0), expected
    )
    # On torch that would be a compiler of C++, for minutes.
    compiled = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=compiled)
    with pytest.raises(ValueError, match="number of training examples"):
        model.fit(x, y, verbose=0)
    keras_vdrop.set_num_examples(model, 1000)
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=10, verbose=0)
    assert model.evaluate(x, y, verbose=0) < before
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    found = keras_vdrop.predict(loaded, x, num_samples=3, seed=0, verbose=0)
    assert np.all(found.std > 0)
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )


def test_summary_has_a_line_for_each_kernel(capsys):
    layer, _ = build("separable_conv1d", name="both")
    keras_vdrop.summary(layer)
    printed = capsys.readouterr().out
    for kernel in KERNELS:
        assert f"both/{kernel}" in printed


def test_pruning(capsys):
    layer, inputs = build(
        "separable_conv1d", granularity="weight", kl="exact", max_alpha=None
    )
    for weight in layer.random_weights:
        values = np.linspace(0, 6, np.prod(weight.variable.shape))
        weight.unscaled().assign(values.reshape(weight.variable.shape))
    model = keras.Sequential([keras.Input(inputs.shape[1:]), layer])
    pruned = keras_vdrop.to_deterministic(model, prune=3.0)
    for name, weight in zip(KERNELS, layer.random_weights, strict=True):
        np.testing.assert_array_equal(
            to_numpy(getattr(pruned.layers[0], name)),
            np.where(
                to_numpy(weight.unscaled()) > 3,
                0,
                to_numpy(getattr(layer, name)),
            ),
        )
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == [layer.name, "20", "10", "3", "0"]
