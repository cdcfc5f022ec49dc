"""A training step does not come to run more operations, or move more bytes."""

import csv
import importlib.util
import os
import pathlib
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parent.parent
BASE = "GaussianDropout"
COUNTS = ("kernels", "moved_bytes", "operations")


def recorded(device):
    name = f"programs_{keras.backend.backend()}_{device}.csv"
    with open(ROOT / "docs" / "performance" / name, newline="") as file:
        return {row["model"]: row for row in csv.DictReader(file)}


@pytest.fixture
def benchmarks(monkeypatch):
    for folder in ("benchmarks", "."):
        monkeypatch.syspath_prepend(ROOT / "examples" / folder)
    names = "programs", "prediction_programs", "compiled_programs"
    yield
    for name in (*names, "benchmark", "prediction"):
        sys.modules.pop(name, None)


def need_a100():
    if (
        keras.backend.backend() != "jax"
        or not importlib.util.find_spec("jax_plugins")
        or os.environ.get("JAX_PLATFORMS") != "cpu"
    ):
        pytest.skip("Needs jax, jax-cuda12-pjrt and JAX_PLATFORMS=cpu.")


@pytest.mark.parametrize("device", ["cpu", "a100"])
@pytest.mark.parametrize(
    "name",
    [
        "type B, weight",
        pytest.param("type A", marks=pytest.mark.slow),
        pytest.param("type B, layer", marks=pytest.mark.slow),
        pytest.param("type B, weight, exact KL", marks=pytest.mark.slow),
        pytest.param("type B, additive", marks=pytest.mark.slow),
    ],
)
def test_counts_relative_to_gaussian_dropout(name, device, benchmarks):
    import programs
    from shared.data import random_images
    from shared.results import versions

    if device == "a100":
        need_a100()
    rows = recorded(device)
    if rows[name]["backend"] != versions()["backend"]:
        pytest.skip(f"The counts are those of {rows[name]['backend']}.")
    x, y = random_images(128, (784,))
    counts = {
        model: programs.count(
            programs.build(model, [1024] * 3, 784), x, y, device
        )
        for model in (BASE, name)
    }
    compared = [count for count in COUNTS if count in rows[name]]
    assert compared
    for count in compared:
        ratio = counts[name][count] / counts[BASE][count]
        before = int(rows[name][count]) / int(rows[BASE][count])
        assert ratio < 1.05 * before, (count, ratio, before)


# The most kernels that 32 samples may take on an A100.
MOST_KERNELS = 60


@pytest.mark.parametrize("sampling", ["weights", "local"])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_counts_of_predictions(network, sampling, benchmarks):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        pytest.skip("Nothing is counted.")
    if backend == "jax":
        need_a100()
    import prediction_programs
    from shared.data import random_images
    from shared.results import versions

    name = f"programs_prediction_{backend}.csv"
    with open(ROOT / "docs" / "performance" / name, newline="") as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["network"], row["sampling"]) == (network, sampling)
            and (row["batch_size"], row["way"]) == ("32", "at once")
        )
    if row["backend"] != versions()["backend"]:
        pytest.skip(f"The counts are those of {row['backend']}.")
    model = prediction_programs.build(network)
    x, _ = random_images(32, model.input_shape[1:])
    found = prediction_programs.count(model, x, 32, sampling, "at once")
    for count in COUNTS:
        if count in row:
            assert found[count] < 1.05 * int(row[count]), count
    assert found.get("kernels", 0) <= MOST_KERNELS


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Nothing is traced."
)
@pytest.mark.parametrize("kind", ["correlated", "independent"])
def test_as_many_traces_as_without_noise(kind):
    import numpy as np

    import keras_vdrop

    def traces(layer):
        class Counted(type(layer)):
            calls = 0

            def call(self, inputs, training=None):
                type(self).calls += 1
                return super().call(inputs, training=training)

        counted = Counted.from_config(layer.get_config())
        model = keras.Sequential([keras.Input((3,)), counted])
        Counted.calls = 0
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 2)), 4, epochs=4, verbose=0)
        return Counted.calls

    ours = keras_vdrop.VariationalDense(2, noise=kind, num_examples=8)
    assert traces(ours) == traces(keras.layers.Dense(2))
