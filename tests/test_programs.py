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
def programs(monkeypatch):
    for folder in ("benchmarks", "."):
        monkeypatch.syspath_prepend(ROOT / "examples" / folder)
    import programs

    yield programs
    for name in ("programs", "compiled_programs", "benchmark"):
        sys.modules.pop(name, None)


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
def test_counts_relative_to_gaussian_dropout(name, device, programs):
    from shared.data import random_images
    from shared.results import versions

    backend = keras.backend.backend()
    if device == "a100" and (
        backend != "jax"
        or not importlib.util.find_spec("jax_plugins")
        or os.environ.get("JAX_PLATFORMS") != "cpu"
    ):
        pytest.skip("Needs jax, jax-cuda12-pjrt and JAX_PLATFORMS=cpu.")
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
