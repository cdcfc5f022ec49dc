"""Files: exact on one backend and from one backend to another."""

import json
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from backends import environment_of
from backends import run_python
from cases import every_posterior
from run import INSTALLED

import keras_vdrop


def model_of_every_layer(**posterior):
    model = keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            keras_vdrop.VariationalConv2D(
                3,
                2,
                **posterior,
                rate=0.2,
                data_format="channels_last",
            ),
            keras_vdrop.VariationalDropout(0.3, granularity="input"),
            keras.layers.Reshape((9, 3)),
            keras_vdrop.VariationalConv1D(2, 2, data_format="channels_last"),
            keras.layers.Reshape((2, 2, 4, 1)),
            keras_vdrop.VariationalConv3D(
                2, 2, adaptive=False, data_format="channels_last"
            ),
            keras.layers.Flatten(),
            keras_vdrop.VariationalDense(
                3, noise="correlated", granularity="input", seed=7
            ),
        ]
    )
    keras_vdrop.set_num_examples(model, 123, kl_downscale=3)
    generator = np.random.default_rng(0)
    model.set_weights(
        [
            generator.uniform(-2, 0, w.shape).astype(w.dtype)
            if w.dtype.kind == "f"
            else w
            for w in model.get_weights()
        ]
    )
    return model


def assert_same(model, other):
    assert json.dumps(model.get_config()) == json.dumps(other.get_config())
    for a, b in zip(model.weights, other.weights, strict=True):
        assert a.path.split("/")[-1] == b.path.split("/")[-1]
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@every_posterior
def test_keras_file(tmp_path, posterior):
    model = model_of_every_layer(**posterior)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(model, loaded)
    for ours, theirs in zip(model.losses, loaded.losses, strict=True):
        assert float(keras.ops.convert_to_numpy(ours)) == float(
            keras.ops.convert_to_numpy(theirs)
        )


def test_weights_file(tmp_path):
    model = model_of_every_layer()
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras.models.clone_model(model)
    other.load_weights(tmp_path / "model.weights.h5")
    for a, b in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_weights_of_a_plain_layer_are_refused(tmp_path):
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    plain.save_weights(tmp_path / "plain.weights.h5")
    model = keras.Sequential(
        [keras.Input((3,)), keras_vdrop.VariationalDense(2, name="dense")]
    )
    with pytest.raises(ValueError, match="RandomWeight name=kernel_noise"):
        model.load_weights(tmp_path / "plain.weights.h5")


WEIGHT = {"granularity": "weight", "name": "mine"}
ADDITIVE = {**WEIGHT, "parameterization": "additive"}


@pytest.mark.parametrize(
    "saved, loaded, message",
    [
        (WEIGHT, ADDITIVE, r"log_variance of shape \(3, 2\).*: log_alpha of"),
        (ADDITIVE, WEIGHT, r"log_alpha of shape \(3, 2\).*: log_variance of"),
        (
            {**WEIGHT, "granularity": "input"},
            WEIGHT,
            r"log_alpha of shape \(3, 2\).*log_alpha of shape \(3,\)",
        ),
        (
            {"name": "mine"},
            ADDITIVE,
            r"log_variance.*: log_alpha of shape \(\)",
        ),
    ],
)
def test_noise_that_does_not_fit_is_refused(tmp_path, saved, loaded, message):
    def model_of(arguments):
        layer = keras_vdrop.VariationalDense(2, **arguments)
        return keras.Sequential([keras.Input((3,)), layer])

    model_of(saved).save_weights(tmp_path / "some.weights.h5")
    model = model_of(loaded)
    noise = model.layers[0].kernel_noise
    before = noise.get_weights()
    with pytest.raises(ValueError, match=f"'mine' cannot.*{message}") as error:
        model.load_weights(tmp_path / "some.weights.h5")
    assert "`parameterization` and `granularity`" in str(error.value)
    for a, b in zip(before, noise.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@every_posterior
def test_noise_that_fits_is_loaded(tmp_path, posterior):
    models = [
        keras.Sequential(
            [keras.Input((3,)), keras_vdrop.VariationalDense(2, **posterior)]
        )
        for _ in range(2)
    ]
    models[0].save_weights(tmp_path / "some.weights.h5")
    models[1].load_weights(tmp_path / "some.weights.h5")
    pairs = zip(*[model.get_weights() for model in models], strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a, b)


def test_optimizer_state_and_training_go_on(tmp_path):
    model = model_of_every_layer()
    model.compile("adam", "mse")
    x = np.random.normal(size=(8, 4, 4, 2)).astype("float32")
    y = np.zeros((8, 3), "float32")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(model, loaded)
    assert int(loaded.optimizer.iterations) == 1
    loaded.fit(x, y, verbose=0)
    assert int(loaded.optimizer.iterations) == 2


OTHER_PROCESS = """
import sys
import keras
import keras_vdrop
import numpy as np

_, path, out = sys.argv
model = keras.models.load_model(path)
x = np.random.default_rng(1).normal(size=(5, 4, 4, 2)).astype("float32")
np.savez(
    out,
    predictions=model.predict(x, verbose=0),
    losses=[float(keras.ops.convert_to_numpy(l)) for l in model.losses],
    **{str(i): w for i, w in enumerate(model.get_weights())},
)
model.compile("adam", "mse")
assert np.isfinite(model.fit(x, np.zeros((5, 3)), verbose=0).history["loss"][0])
"""


@pytest.mark.parametrize("backend", INSTALLED)
def test_file_opens_on_every_backend(tmp_path, backend):
    model = model_of_every_layer()
    model.save(tmp_path / "model.keras")
    run_python(
        OTHER_PROCESS,
        tmp_path / "model.keras",
        tmp_path / "found.npz",
        backend=backend,
    )
    found = np.load(tmp_path / "found.npz")
    x = np.random.default_rng(1).normal(size=(5, 4, 4, 2)).astype("float32")
    np.testing.assert_allclose(
        found["predictions"], model.predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )
    losses = [float(keras.ops.convert_to_numpy(x)) for x in model.losses]
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
    for i, weight in enumerate(model.get_weights()):
        np.testing.assert_array_equal(found[str(i)], weight)


INTERRUPTED = """
import json
import sys
import time
import keras
import keras_vdrop
import numpy as np

folder, epochs = sys.argv[1], 6
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((3,)), keras_vdrop.VariationalDense(2, rate=0.2)]
)
keras_vdrop.set_num_examples(model, 32)
model.compile("adam", "mse")

class Schedule(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        value = (epoch + 1) / epochs / 32
        self.model.layers[0].kl_weight.assign(value)
        print("epoch", epoch, flush=True)

    def on_epoch_end(self, epoch, logs=None):
        print("saved", epoch, flush=True)
        if epoch == int(sys.argv[2]):
            time.sleep(600)

x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
model.fit(
    x, x[:, :2], epochs=epochs, verbose=0, batch_size=8,
    callbacks=[keras.callbacks.BackupAndRestore(folder), Schedule()],
)
layer = model.layers[0]
print(json.dumps({
    "kl_weight": float(layer.kl_weight.numpy()),
    "log_alpha": float(layer.log_alpha.numpy()),
    "iterations": int(model.optimizer.iterations),
}))
"""


def test_killed_training_is_resumed(tmp_path):
    folder = tmp_path / "backup"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED, str(folder), "2"],
        env=environment_of(),
        stdout=subprocess.PIPE,
        text=True,
    )
    # Not while it writes: Keras's backup is no atomic one.
    for line in process.stdout:
        if line.strip() == "saved 2":
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    resumed = run_python(INTERRUPTED, folder, "-1").splitlines()
    epochs = [int(x.split()[1]) for x in resumed if x.startswith("epoch")]
    assert epochs == [3, 4, 5]
    final = json.loads(resumed[-1])
    assert final["iterations"] == 6 * 4
    np.testing.assert_allclose(final["kl_weight"], 1 / 32, rtol=1e-6)
    # Adam moves log alpha by its rate of 0.001 a step at most, a little more
    # while its averages warm up.
    moved = final["log_alpha"] - np.log(0.25)
    assert 0.001 < abs(moved) < 6 * 4 * 0.0015
