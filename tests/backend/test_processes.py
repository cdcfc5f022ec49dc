"""Two processes on JAX, which train one model on two devices each."""

import keras
import pytest
from backends import free_address
from backends import run_processes
from backends import run_python

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="`keras.distribution` needs jax"
)

START = """
import sys

import keras
import numpy as np

import keras_vdrop

generator = np.random.default_rng(0)
x = generator.normal(size=(32, 8)).astype("float32")
y = generator.normal(size=(32, 4)).astype("float32")


def make():
    keras.utils.set_random_seed(0)
    arguments = {"rate": 0.3, "num_examples": 100, "seed": 1}
    model = keras.Sequential([
        keras.Input((8,)),
        keras_vdrop.VariationalDense(
            8, granularity="weight", name="first", **arguments
        ),
        keras_vdrop.VariationalDense(
            4, noise="correlated", name="last", **arguments
        ),
    ])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit(model, x, y, epochs=2):
    logger = keras_vdrop.callbacks.DropoutRateLogger()
    return model.fit(
        x,
        y,
        batch_size=len(x),
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[logger],
    ).history


def numbers(model, x):
    # What has to be the same on one device and on many.
    lines = []
    keras_vdrop.summary(model, print_fn=lines.append)
    plain = keras_vdrop.to_deterministic(model)
    predictions = [
        keras_vdrop.predict(model, x, 2, seed=0, sampling=sampling, verbose=0)
        for sampling in ("weights", "local")
    ]
    figure = keras_vdrop.plot_rates(model)
    return {
        "rates": model.layers[0].dropout_rates(),
        "kl": [layer.kl() for layer in model.layers],
        "table": [float(part) for part in lines[5].split()[3:7]],
        "predictions": predictions[0].mean,
        "examples": [len(found.mean) for found in predictions],
        "histogram": [bar.get_height() for bar in figure.axes[0].patches],
        "plain": keras.ops.convert_to_numpy(
            keras.ops.sum(plain.layers[1].kernel)
        ),
    }
"""

ONE = """
model = make()
found = {f"history {k}": v for k, v in fit(model, x, y).items()}
found |= numbers(model, x)
pruned = keras_vdrop.to_deterministic(model, prune=-1.5, verbose=0)
found["parameters"] = pruned.count_params()
found["next"] = fit(model, x, y, 1)["loss"]
np.savez(sys.argv[1] + "/one.npz", **found)
"""

BOTH = """
from jax.experimental import multihost_utils

number, address, folder = int(sys.argv[1]), *sys.argv[2:]
keras.distribution.initialize(address, 2, number)
distribution = keras.distribution
devices = distribution.list_devices()
assert len(devices) == 4
expected = np.load(folder + "/one.npz")
own = slice(16 * number, 16 * number + 16)


def check(x, y, rows):
    model = make()
    found = {f"history {k}": v for k, v in fit(model, x, y).items()}
    found |= numbers(model, x)
    for name, value in found.items():
        wanted = expected[name]
        if name == "predictions":
            wanted = wanted[rows]
        if name == "examples":
            wanted = [len(x), len(x)]
        # A rate at the edge of a bin may be in the next.
        slack = 1.0 if name == "histogram" else 1e-6
        np.testing.assert_allclose(
            value, wanted, rtol=1e-5, atol=slack, err_msg=name
        )
    pruned = keras_vdrop.to_deterministic(model, prune=-1.5, verbose=0)
    assert pruned.count_params() == expected["parameters"]
    try:
        keras_vdrop.gradient_variance(model, x, y, batch_size=4)
    except ValueError as error:
        assert "`gradient_variance` works in one process" in str(error)
    else:
        raise AssertionError("not refused")
    return model


# Each process has a half of each batch.
distribution.set_distribution(
    distribution.DataParallel(auto_shard_dataset=False)
)
model = check(x[own], y[own], own)
# Batches that the devices do not divide.
odd = keras_vdrop.predict(model, x[own][:7], 2, verbose=0, batch_size=4)
assert odd.mean.shape == (7, 4)
model.save(f"{folder}/{number}.keras")
np.testing.assert_allclose(
    fit(model, x[own], y[own], 1)["loss"], expected["next"], rtol=1e-6
)

# Each process has a half of each kernel, and all examples.
mesh = distribution.DeviceMesh((1, 4), ("batch", "model"), devices)
layouts = distribution.LayoutMap(mesh)
layouts[".*kernel"] = (None, "model")
layouts[".*bias"] = ("model",)
distribution.set_distribution(
    distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )
)
model = check(x, y, slice(None))
assert not model.layers[0].kernel.value.is_fully_replicated
noise = model.layers[0].kernel_noise.variable
assert not noise.value.is_fully_replicated

# A file of a model whose arrays span processes, as in the docs.
values = multihost_utils.process_allgather(
    [v.value for v in model.weights], tiled=True
)
distribution.set_distribution(None)
whole = make()
for variable, value in zip(whole.weights, values, strict=True):
    variable.assign(value)
if number == 0:
    whole.save(f"{folder}/whole.keras")
    # What needs one process has it, as the error says.
    found = keras_vdrop.gradient_variance(
        whole, x, y, batch_size=8, estimators=("local",), verbose=0
    )["local"]
    assert found["first"].variance > 0
print("done")
"""

RESUMED = """
expected = np.load(sys.argv[1] + "/one.npz")["next"]
for name in "0", "whole":
    model = keras.saving.load_model(f"{sys.argv[1]}/{name}.keras")
    found = fit(model, x, y, 1)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
"""


def test_two_processes(tmp_path):
    run_python(START + ONE, tmp_path)
    for printed in run_processes(
        START + BOTH,
        2,
        free_address(),
        tmp_path,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    ):
        assert "done" in printed
    # One process goes on with the file of two.
    run_python(START + RESUMED, tmp_path)
