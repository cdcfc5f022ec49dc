"""Replicas of `tf.distribute.MirroredStrategy` on parts of a CPU."""

import keras
import pytest
from backends import run_python

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="`tf.distribute`"
)

START = """
import sys

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    4 * [tf.config.LogicalDeviceConfiguration()],
)
import keras
import numpy as np

import keras_vdrop

generator = np.random.default_rng(0)
x = generator.normal(size=(64, 6)).astype("float32")
y = generator.normal(size=(64, 3)).astype("float32")


def strategy_of(count):
    return tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(count)])


# A rate for which noise is below the rounding of float32.
SILENT = {"rate": 1e-20, "num_examples": 100}


def make(learning_rate=0.1, **arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((6,)),
        keras_vdrop.VariationalDense(5, granularity="weight", **arguments),
        keras_vdrop.VariationalDense(3, **arguments),
    ])
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    return model


def fit(model, epochs=1, **more):
    return model.fit(
        x, y, batch_size=32, epochs=epochs, shuffle=False, verbose=0, **more
    ).history["loss"]


def components(variable):
    return [np.array(part) for part in variable.value.values]
"""

TRAINING = """
alone = make(**SILENT)
expected = fit(alone)
strategy = strategy_of(4)
with strategy.scope():
    model = make(**SILENT)
# The KL is in the loss, once.
np.testing.assert_allclose(fit(model), expected, rtol=1e-6)
for one, other in zip(alone.get_weights(), model.get_weights()):
    np.testing.assert_allclose(other, one, atol=1e-7, rtol=0)

# A loop of one's own, as in the docs.
with strategy.scope():
    looped = make(**SILENT)
    loss_fn = keras.losses.MeanSquaredError()


def one_step(x, y):
    with tf.GradientTape() as tape:
        outputs = looped(x, training=True)
        loss = loss_fn(y, outputs)
        loss += sum(looped.losses) / strategy.num_replicas_in_sync
    variables = looped.trainable_variables
    looped.optimizer.apply(tape.gradient(loss, variables), variables)


@tf.function
def step(batch):
    strategy.run(one_step, args=batch)


data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
for batch in strategy.experimental_distribute_dataset(data):
    step(batch)
for one, other in zip(alone.get_weights(), looped.get_weights()):
    np.testing.assert_allclose(other, one, atol=1e-7, rtol=0)

# One device goes on with a file.
model.save(sys.argv[1])
expected = fit(alone)
again = keras.saving.load_model(sys.argv[1])
np.testing.assert_allclose(fit(again), expected, rtol=1e-6)
print(*expected)

# Identical rows on all replicas, in two layers with the same kernel.
with strategy.scope():
    layers = [
        keras_vdrop.VariationalDense(3, kernel_initializer="ones")
        for _ in range(2)
    ]
    for layer in layers:
        layer.build((None, 6))


@tf.function
def draw():
    ones = tf.ones((3, 6))
    return strategy.run(lambda: [x(ones, training=True) for x in layers])


rows = [
    part.numpy() for found in draw() for part in found.values
]
rows = np.concatenate(rows)
assert rows.shape == (24, 3) and len(np.unique(rows, axis=0)) == 24

# A KL that is much stronger than the data drives alpha to its limit.
with strategy.scope():
    model = make(rate=0.4, num_examples=1, learning_rate=0.3, seed=3)
fit(model, epochs=10)  # 20 steps.
for variable in model.variables:
    first, *others = components(variable)
    for other in others:
        np.testing.assert_array_equal(other, first)
for layer in model.layers:
    assert np.max(layer.log_alpha) <= 1e-6
    assert np.max(layer.dropout_rates()) == 0.5

# Of the weight of the KL each replica has the value of the epoch.
with strategy.scope():
    model = make(rate=0.3, num_examples=50)
shares = []
check = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: shares.append(
        components(model.layers[0].kl_weight)
    )
)
fit(model, 3, callbacks=[keras_vdrop.callbacks.KLWarmup(2), check])
np.testing.assert_allclose(
    np.array(shares) * 50, np.outer([0.0, 0.5, 1.0], np.ones(4)), rtol=1e-6
)
"""

# TensorFlow has strategies of one size only in a process.
RESUMED = """
with strategy_of(2).scope():
    again = keras.saving.load_model(sys.argv[1])
np.testing.assert_allclose(fit(again), float(sys.argv[2]), rtol=1e-6)
"""

SCOPE = """
strategy = strategy_of(4)
with strategy.scope():
    model = make(rate=0.3, num_examples=64, seed=1)


def everything():
    found = keras_vdrop.gradient_variance(
        model, x, y, batch_size=16, estimators=("local",), verbose=0
    )["local"]
    scores = keras_vdrop.evaluate(
        model, x, y, num_samples=2, seed=0, verbose=0
    )
    return [*map(tuple, found.values()), tuple(scores.values())]


outside = everything()
with strategy.scope():
    inside = everything()
for one, other in zip(outside, inside, strict=True):
    np.testing.assert_allclose(other, one, rtol=1e-5)

# Predictions are those of one device, and each replica has a part of a batch.
alone = make(rate=0.3, num_examples=64, seed=1)
alone.set_weights(model.get_weights())
for size in 64, 50:
    one, other = (
        keras_vdrop.predict(m, x[:size], 3, seed=0, verbose=0).mean
        for m in (alone, model)
    )
    np.testing.assert_allclose(other, one, atol=1e-6)
with strategy.scope():
    inputs = keras.Input((6,))
    sizes = keras.layers.Lambda(
        lambda x: 0 * x[:, :1] + tf.cast(tf.shape(x)[0], "float32")
    )(keras_vdrop.VariationalDense(3)(inputs))
    model = keras.Model(inputs, sizes)
found = keras_vdrop.predict(model, x, 2, batch_size=32, verbose=0)
np.testing.assert_array_equal(found.mean, 8.0)
"""

# Replicas run in threads of their own, in which there is noise as well.
SAMPLES = """
ones = np.ones((8, 6), "float32")
strategy = strategy_of(4)


def samples_of(layer, **arguments):
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), layer])
    found = keras_vdrop.predict(
        model, ones, 3, keep_samples=True, seed=0, verbose=0, **arguments
    )
    assert np.all(model.predict(ones, verbose=0) == model(ones))
    return found.samples


# Noise of each example.
for layer, arguments in (
    (keras_vdrop.VariationalDense(1, rate=0.3), {"sampling": "local"}),
    (keras_vdrop.VariationalDropout(0.3), {"sampling": "local"}),
):
    samples = samples_of(layer, **arguments)
    assert len(np.unique(samples[..., 0])) == 24, layer
# The same noise for all examples, whatever their replica.
samples = samples_of(keras_vdrop.VariationalDropout(0.3))
assert len(np.unique(samples)) == 3 * 6
# Monte Carlo dropout.
samples = samples_of(keras.layers.GaussianDropout(0.3), dropout=True)
assert np.all(samples != 1)
"""


def test_training(tmp_path):
    path = tmp_path / "model.keras"
    printed = run_python(START + TRAINING, path)
    run_python(START + RESUMED, path, printed.split()[-1])


def test_the_scope_and_all_replicas():
    run_python(START + SCOPE)


def test_samples():
    run_python(START + SAMPLES)
