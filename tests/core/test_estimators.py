"""One sample of the weights a minibatch, or one an example, on every layer."""

import os

import keras
import numpy as np
import pytest
from backends import gradients
from backends import run_python
from cases import KERNEL_LAYERS
from cases import POSTERIORS
from cases import UNITS
from cases import alpha_of_weights
from cases import build
from cases import every_layer_and_posterior
from cases import every_posterior
from cases import outputs_of_each_weight
from cases import set_log_alpha
from cases import twin

import keras_vdrop

DRAWS = 1000
# Standard errors that the largest of a few hundred deviations stays within.
SIGMAS = 5.5

sampling = pytest.mark.parametrize("estimator", ["batch", "example", "flipout"])
every_estimator = pytest.mark.parametrize(
    "estimator", ["local", "batch", "example", "flipout"]
)


# One of each way to place alpha.
some_posteriors = pytest.mark.parametrize(
    "posterior",
    [
        POSTERIORS[name]
        for name in ("layer", "output", "additive", "correlated-input")
    ],
    ids=str,
)

# Mapping over examples is slow.
LAYERS_FOR_EXAMPLE = ("dense", "dense_rank_3", "conv2d_groups", "einsum_dense")


def skip_some(case, estimator):
    if estimator == "example" and case not in LAYERS_FOR_EXAMPLE:
        pytest.skip("other layers do the same")


def calls(layer, inputs, count):
    """Outputs of `count` calls, `(count, *outputs)`."""
    inputs = keras.ops.convert_to_tensor(inputs)
    generator = layer.kernel_noise.generator

    def call(key):
        with generator.hold(key):
            return layer(inputs, training=True)

    def run():
        return keras.ops.map(call, layer.kernel_noise.generator.split(count))

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        run = tf.function(run)
    return keras.ops.convert_to_numpy(run())


def jacobian(layer, inputs):
    """Of all outputs by all weights, through the plain Keras layer."""
    found = outputs_of_each_weight(layer, inputs)
    return found.reshape(len(found), -1).T.astype("float64")


def weight_covariance(layer):
    """Of all weights, by the definition of the posterior."""
    theta = keras.ops.convert_to_numpy(layer.kernel).astype("float64")
    std = np.sqrt(alpha_of_weights(layer)) * theta
    covariance = np.outer(std, std)
    if layer.noise == "independent":
        return np.diag(np.diag(covariance))
    # Weights share their noise if they multiply the same inputs, for outputs
    # at the same positions.
    shape = KERNEL_LAYERS[layer.case][2]
    each_input = np.eye(np.prod(shape), dtype="float32")
    reached = outputs_of_each_weight(layer, each_input.reshape(-1, *shape))
    _, units = UNITS.get(layer.case, ((-1,), (-1,)))
    units = tuple(axis + 2 if axis >= 0 else axis for axis in units)
    reached = reached.any(axis=units).reshape(len(reached), -1)
    return covariance * np.all(reached[:, None] == reached, axis=-1)


def assert_moments(samples, mean, covariance, draws=DRAWS):
    variance = np.diag(covariance)
    error = np.sqrt(variance / draws)
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - mean), SIGMAS * error + 1e-5
    )
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / draws)
    found = np.cov(samples, rowvar=False)
    np.testing.assert_array_less(
        np.abs(found - covariance), SIGMAS * error + 1e-5
    )


@sampling
@every_layer_and_posterior
def test_mean_and_covariance(case, posterior, estimator):
    """Of all outputs: between examples, positions and units."""
    skip_some(case, estimator)
    layer, inputs = build(case, **posterior, estimator=estimator, seed=1)
    samples = calls(layer, inputs, DRAWS).reshape(DRAWS, -1)
    mean = keras.ops.convert_to_numpy(twin(layer)(inputs)).ravel()
    outputs = jacobian(layer, inputs)
    covariance = outputs @ weight_covariance(layer) @ outputs.T
    if estimator != "batch":
        example = np.arange(len(mean)) // (len(mean) // len(inputs))
        covariance *= example[:, None] == example
    assert_moments(samples, mean, covariance)


@every_estimator
@every_posterior
def test_dense_layers_are_the_same_for_one_example(posterior, estimator):
    """Units of type B have no correlation, those of type A the closed form."""
    layer, inputs = build("dense", **posterior, estimator=estimator, seed=1)
    row = inputs[:1]
    samples = calls(layer, row, DRAWS)[:, 0]
    theta = keras.ops.convert_to_numpy(layer.kernel)
    alpha = alpha_of_weights(layer)
    covariance = theta.T @ (alpha[:, :1] * row.T**2 * theta)
    if layer.noise == "independent":
        covariance = np.diag((row**2 @ (alpha * theta**2))[0])
    assert_moments(samples, (row @ theta + 1)[0], covariance)


@every_estimator
def test_covariance_between_two_examples(estimator):
    layer, inputs = build(
        "dense", granularity="weight", estimator=estimator, seed=1
    )
    samples = calls(layer, inputs, DRAWS)
    theta = keras.ops.convert_to_numpy(layer.kernel)
    variance = alpha_of_weights(layer) * theta**2
    first, second = inputs
    expected = (first * second) @ variance if estimator == "batch" else 0.0
    deviation = samples - samples.mean(0)
    found = (deviation[:, 0] * deviation[:, 1]).mean(0)
    error = np.sqrt(
        ((first**2 @ variance) * (second**2 @ variance) + expected**2) / DRAWS
    )
    np.testing.assert_array_less(np.abs(found - expected), SIGMAS * error)


@sampling
@pytest.mark.parametrize("case", ["dense", "conv2d_groups"])
@some_posteriors
def test_gradients_are_those_of_finite_differences(case, posterior, estimator):
    layer, inputs = build(case, **posterior, estimator=estimator, seed=1)
    layer.set_num_examples(10**9)  # the KL has tests of its own
    seed = layer.kernel_noise.generator.next_key()
    inputs[1] = 0

    def loss(outputs):
        return keras.ops.sum(keras.ops.square(outputs))

    def value():
        with layer.kernel_noise.generator.hold(seed):
            outputs = layer(inputs, training=True)
        return float(loss(outputs)) + float(sum(layer.losses))

    with layer.kernel_noise.generator.hold(seed):
        _, _, *found = gradients(loss, layer, inputs)
    for variable, gradient in zip(
        layer.trainable_variables, found, strict=True
    ):
        before = variable.numpy()
        direction = np.random.default_rng(0).normal(size=before.shape)
        step = 1e-2
        variable.assign(before + step * direction)
        above = value()
        variable.assign(before - step * direction)
        difference = (above - value()) / (2 * step)
        variable.assign(before)
        expected = np.sum(gradient * direction)
        assert abs(difference - expected) < 2e-2 * max(1, abs(expected))


@sampling
@pytest.mark.parametrize("case", ["dense", "conv2d_groups"])
@some_posteriors
def test_no_nan(case, posterior, estimator):
    layer, inputs = build(case, **posterior, estimator=estimator)
    inputs[0] = 0
    for log_alpha in (-200.0, 20.0):
        set_log_alpha(layer, log_alpha)
        for value in gradients(keras.ops.mean, layer, inputs):
            assert np.all(np.isfinite(value))


@sampling
@pytest.mark.parametrize("case", ["dense", "dense_rank_3"])
def test_empty_batch(case, estimator):
    layer, inputs = build(case, estimator=estimator)
    found = layer(inputs[:0], training=True)
    assert tuple(found.shape) == tuple(twin(layer)(inputs[:0]).shape)


@sampling
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@some_posteriors
def test_half_precision(posterior, dtype, estimator):
    layer, inputs = build(
        "dense", **posterior, dtype=dtype, estimator=estimator
    )
    inputs = np.full_like(inputs, 1000)
    for value in gradients(keras.ops.mean, layer, inputs):
        assert np.all(np.isfinite(value))
    outputs = layer(inputs, training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == (
        layer.compute_dtype
    )
    outputs = keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))
    assert np.std(outputs) > 1


@every_estimator
@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_fit(noise, estimator):
    """With a last batch that is smaller, and convolutions."""
    arguments = {"noise": noise, "estimator": estimator}
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras_vdrop.VariationalConv2D(2, 2, **arguments),
            keras.layers.Flatten(),
            keras_vdrop.VariationalDense(
                8, activation="relu", **arguments, rate=0.05
            ),
            keras_vdrop.VariationalDense(1, **arguments, rate=0.05),
        ]
    )
    keras_vdrop.set_num_examples(model, 1000)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(40, 4, 4, 1)).astype("float32")
    y = x[:, 0, 0]
    before = model.evaluate(x, y, verbose=0)
    history = model.fit(x, y, batch_size=16, epochs=15, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert model.evaluate(x, y, verbose=0) < before


@every_estimator
def test_new_noise_in_each_step_and_the_same_for_the_same_seed(estimator):
    def outputs():
        layer, inputs = build(
            "dense", granularity="weight", estimator=estimator, seed=4
        )
        layer.kernel.assign(np.ones(layer.kernel.shape))
        drawn = [layer(inputs, training=True) for _ in range(2)]
        return [keras.ops.convert_to_numpy(x) for x in drawn]

    first, second = outputs()
    assert not np.any(first == second)
    np.testing.assert_array_equal(outputs(), [first, second])


MEMORY = """
import keras
import keras_vdrop
import numpy as np

layer = keras_vdrop.VariationalDense(512, estimator="example", num_examples=1)
model = keras.Sequential([keras.Input((512,)), layer])
model.compile("sgd", "mse")
for examples in (40, 240):
    x = np.ones((examples, 512), "float32")
    model.train_on_batch(x, x)
    status = open("/proc/self/status").read()
    print(status.split("VmHWM:")[1].split()[0])  # most memory, in kB
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="only Linux tells"
)
def test_example_needs_no_memory_for_a_kernel_of_each_example():
    # glibc would cut the space of a freed kernel up for smaller things.
    found = run_python(MEMORY, MALLOC_MMAP_THRESHOLD_="65536")
    few, many = (int(kilobytes) for kilobytes in found.split()[-2:])
    # 200 kernels of 512 x 512 float32 are 200 MiB; compiling takes some too.
    assert many - few < 100 * 1024
