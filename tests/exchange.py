"""Writes a model with one version of Keras and reads it with another.

    python tests/exchange.py write FOLDER
    python tests/exchange.py read FOLDER

`read` loads the model, and its weights alone, and compares the predictions, the
rates, the KL and the noise of the next training call with what was written. An
older Keras reads the weights of a newer one, but no models, plain ones neither:
`Dense` of 3.15 has an argument that 3.10 does not know.
"""

import pathlib
import sys

import keras
import numpy as np
from backends import KERAS

import keras_vdrop

SHAPE = (6, 3)


def build():
    noise = {"granularity": "input", "num_examples": 100, "rate": 0.2}
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras_vdrop.VariationalConv1D(4, 3, activation="relu", **noise),
            keras_vdrop.VariationalLSTM(5, rate=0.1, num_examples=100),
            keras_vdrop.VariationalDropout(0.3, num_examples=100),
            keras_vdrop.VariationalDense(
                2,
                granularity="weight",
                parameterization="additive",
                kl=keras_vdrop.priors.Normal(0.5),
                num_examples=100,
            ),
        ]
    )


def observed(model, x):
    """What a file has to keep, by name."""
    layers = keras_vdrop.variational_layers(model)
    found = {"predictions": model.predict(x, verbose=0)}
    for i, layer in enumerate(layers):
        rates = layer.dropout_rates()
        rates = rates if isinstance(rates, dict) else {"": rates}
        found |= {f"rates {i} {name}": rates[name] for name in rates}
        found[f"kl {i}"] = np.array(layer.kl())
    noisy = model(x, training=True)
    found["noise"] = keras.ops.convert_to_numpy(noisy)
    return found


def write(folder):
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(4, *SHAPE)).astype("float32")
    model = build()
    model.compile("adam", "mse")
    model.fit(x, np.zeros((4, 2)), epochs=2, verbose=0)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    found = observed(model, x)
    np.savez(folder / "observed.npz", x=x, version=KERAS, **found)


def read(folder):
    expected = dict(np.load(folder / "observed.npz"))
    x = expected.pop("x")
    models = [build()]
    models[0].load_weights(folder / "model.weights.h5")
    if tuple(expected.pop("version")) <= KERAS:
        models.append(keras.models.load_model(folder / "model.keras"))
    for model in models:
        found = observed(model, x)
        assert set(found) == set(expected)
        for name in found:
            np.testing.assert_allclose(
                found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name
            )


if __name__ == "__main__":
    action = {"write": write, "read": read}[sys.argv[1]]
    action(pathlib.Path(sys.argv[2]))
    print(f"Keras {keras.__version__}: {sys.argv[1]}, done.")
