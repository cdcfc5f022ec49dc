"""Noise on several devices: different on each, the same run for a seed."""

import threading

import keras
import numpy as np
import pytest
from backends import run_python
from scipy import stats

import keras_vdrop
from keras_vdrop.backend import SEED_DTYPE
from keras_vdrop.core.seeds import InitialState
from keras_vdrop.core.seeds import NoiseGenerator

MIRRORED = """
import keras
import keras_vdrop
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = keras_vdrop.VariationalDense(
        4, kernel_initializer="ones", num_examples=8, seed=1
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(0.0), "mse")

@tf.function
def noise():
    return strategy.run(lambda: layer(tf.ones((2, 4)), training=True))

first = strategy.experimental_local_results(noise())
second = strategy.experimental_local_results(noise())
assert not np.any(first[0] == first[1])
assert not np.any(first[0] == second[0])

# The KL of the mirrored loss is that of one replica.
zeros = np.zeros((8, 4), "float32")
layer.log_alpha.assign(-2.0)
fitted = model.fit(zeros, zeros, batch_size=8, verbose=0).history["loss"][0]
np.testing.assert_allclose(fitted, float(layer.losses[0]), rtol=1e-5)
"""

DISTRIBUTED = """
import os
import sys
import keras
import keras_vdrop
import numpy as np
import torch.distributed
import torch.multiprocessing

def work(rank, path):
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + path + "/store", rank=rank, world_size=2
    )
    layer = keras_vdrop.VariationalDropout(seed=1)
    noise = layer(np.ones((3, 4)), training=True)
    np.save(path + f"/{rank}.npy", keras.ops.convert_to_numpy(noise))

if __name__ == "__main__":
    path = sys.argv[1]
    torch.multiprocessing.start_processes(
        work, (path,), nprocs=2, start_method="fork"
    )
    first, second = (np.load(path + f"/{rank}.npy") for rank in range(2))
    assert not np.any(first == second)
"""

DATA_PARALLEL = """
import jax
import keras
import keras_vdrop
import numpy as np

assert len(jax.devices()) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel())
layer = keras_vdrop.VariationalDropout(num_examples=8, seed=1)
recorded = []

class Recorder(keras.layers.Layer):
    def call(self, inputs):
        jax.debug.callback(lambda x: recorded.append(np.array(x)), inputs)
        return inputs

model = keras.Sequential([keras.Input((4,)), layer, Recorder()])
model.compile(keras.optimizers.SGD(0.0), "mse")
ones = np.ones((8, 4), "float32")
model.fit(ones, ones, batch_size=8, verbose=0)
jax.effects_barrier()
noise = np.concatenate(recorded)
assert noise.size >= 32 and len(np.unique(noise)) == len(noise.ravel())
"""


def only_on(backend):
    return pytest.mark.skipif(
        keras.backend.backend() != backend, reason=f"{backend} only"
    )


@only_on("tensorflow")
def test_replicas_of_mirrored_strategy():
    run_python(MIRRORED)


@only_on("torch")
def test_ranks_of_torch_distributed(tmp_path):
    run_python(DISTRIBUTED, tmp_path)


@only_on("jax")
def test_shards_of_data_parallel():
    run_python(
        DATA_PARALLEL, XLA_FLAGS="--xla_force_host_platform_device_count=2"
    )


def make_generator(seed, salt=""):
    state = keras.Variable(
        InitialState(seed, salt), (3,), SEED_DTYPE, trainable=False
    )
    return NoiseGenerator(state)


def draws(generator, count):
    drawn = [generator.normal((4,), "float32") for _ in range(count)]
    return np.stack([keras.ops.convert_to_numpy(x) for x in drawn])


def test_normal():
    drawn = make_generator(1).normal((100_000,), "float32")
    drawn = keras.ops.convert_to_numpy(drawn)
    assert stats.kstest(drawn, "norm").pvalue > 1e-3


def test_hold_repeats_its_draws():
    generator = make_generator(1)
    key, state = generator.next_key(), generator.state.numpy()
    with generator.hold(key):
        first = draws(generator, 2)
    with generator.hold(key):
        again = draws(generator, 2)
        with generator.hold(generator.next_key()):
            inner = draws(generator, 1)
        after = draws(generator, 1)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(generator.state.numpy(), state)
    different = np.concatenate([again, inner, after, draws(generator, 1)])
    assert len(np.unique(different)) == different.size


def test_a_key_is_held_in_its_thread_alone():
    generator = make_generator(1)
    found = {}

    def work(number):
        key = make_generator(number).next_key()
        with generator.hold(key):
            barrier.wait()
            found[number] = draws(generator, 3)
            barrier.wait()

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, drawn in found.items():
        with generator.hold(make_generator(number).next_key()):
            np.testing.assert_array_equal(drawn, draws(generator, 3))
    assert generator.state.numpy()[2] == 0


def test_split_keys_give_different_draws():
    generator = make_generator(1)
    drawn = []
    for key in generator.split(50):
        with generator.hold(key):
            drawn.append(draws(generator, 1))
    assert len(np.unique(drawn)) == 200


def test_seeds_steps_and_salts_have_different_noise():
    """None of one generator repeats that of another, steps apart."""
    every = [
        draws(make_generator(seed, salt), 5)
        for seed in range(10)
        for salt in ("kernel", "recurrent_kernel")
    ]
    assert len(np.unique(every)) == np.size(every)


def test_same_seed_same_noise():
    np.testing.assert_array_equal(
        draws(make_generator(np.int64(3)), 3), draws(make_generator(3), 3)
    )


@only_on("torch")
@pytest.mark.parametrize(
    "arguments",
    [
        {"noise": "correlated"},
        {"noise": "independent"},
        {"granularity": "weight"},
        {"noise": "independent", "estimator": "flipout"},
        {"estimator": "batch"},
        {"estimator": "example"},
    ],
    ids=str,
)
def test_a_step_reads_nothing_from_the_device(arguments, monkeypatch):
    import torch

    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras_vdrop.VariationalDense(4, num_examples=9, **arguments),
        ]
    )
    model.compile("adam", "mse")
    x, y = torch.ones(2, 3), torch.ones(2, 4)
    model.train_on_batch(x, y)
    state = model.layers[0].kernel_noise.seed_state
    draws = int(state.numpy()[2])
    read = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(
            torch.Tensor, name, lambda *_, name=name: read.append(name)
        )
    model.train_on_batch(x, y)
    monkeypatch.undo()
    assert not read
    assert int(state.numpy()[2]) > draws


def test_a_state_that_is_assigned_is_that_of_the_next_draw():
    generator, other = make_generator(1), make_generator(2)
    draws(generator, 2)
    generator.state.assign(other.state)
    np.testing.assert_array_equal(draws(generator, 2), draws(other, 2))
    saved = generator.state.numpy()
    first = draws(generator, 2)
    generator.state.assign(saved)
    np.testing.assert_array_equal(draws(generator, 2), first)


def test_draws_in_a_stateless_scope_leave_the_state():
    generator, same = make_generator(1), make_generator(1)
    draws(generator, 1)
    before = generator.state.numpy()
    with keras.StatelessScope():
        inside = draws(generator, 2)
    np.testing.assert_array_equal(generator.state.numpy(), before)
    np.testing.assert_array_equal(draws(generator, 2), inside)
    np.testing.assert_array_equal(draws(same, 3)[1:], inside)


def twins(seed=5):
    """Two layers with the same kernel and the same seed in a model."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            *[
                keras_vdrop.VariationalDense(
                    4, kernel_initializer="ones", seed=seed
                )
                for _ in range(2)
            ],
        ]
    )


def outputs_of(model):
    ones = keras.ops.ones((2, 4))
    return [
        keras.ops.convert_to_numpy(layer(ones, training=True))
        for layer in model.layers
    ]


def test_layers_with_the_same_seed_have_other_noise():
    first, second = twins(), twins()
    for model in first, second:
        keras_vdrop.set_num_examples(model, 10)
        # Twice is as once.
        keras_vdrop.set_num_examples(model, 10)
    one, other = outputs_of(first)
    assert len(np.unique(np.concatenate([one, other]))) > 2
    assert not np.isclose(one, other).any()
    # The same model has the same noise again.
    np.testing.assert_array_equal(outputs_of(second), [one, other])


def test_layers_with_the_same_seed_that_are_counted():
    model = twins()
    model.compile("sgd", "mse")
    model.fit(
        np.ones((8, 4)),
        np.ones((8, 4)),
        callbacks=[keras_vdrop.callbacks.CountExamples()],
        verbose=0,
    )
    one, other = (
        keras.ops.convert_to_numpy(layer.kernel_noise.seed_state)
        for layer in model.layers
    )
    assert (one[:2] != other[:2]).all()


def test_a_state_of_a_file_is_not_told_apart(tmp_path):
    model = twins()
    keras_vdrop.set_num_examples(model, 10)
    outputs_of(model)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    keras_vdrop.set_num_examples(loaded, 10)
    np.testing.assert_array_equal(outputs_of(loaded), outputs_of(model))
