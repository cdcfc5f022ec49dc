"""The loops of docs/custom_training.md train what `fit` trains."""

import keras
import numpy as np
import pytest
from test_documentation import ROOT
from test_documentation import blocks_of

if keras.backend.backend() == "jax":
    pytest.importorskip("optax")

PAGE = ROOT / "docs" / "custom_training.md"


def test_every_loop_learns_and_moves_the_rates():
    # The first block builds, and each of the others trains a model.
    setup, *loops = blocks_of(PAGE)
    assert len(loops) == 2
    namespace = {}
    exec(setup, namespace)
    x, y = namespace["x"], namespace["y"]
    for number, loop in enumerate(loops):
        exec(loop, namespace)
        model = namespace["model"]
        for layer in model.layers:
            assert abs(float(layer.dropout_rates()) - 0.05) > 1e-3
        if number == 0:
            logits = model.predict(x, verbose=0)
            assert np.mean(np.argmax(logits, axis=-1) == y) > 0.75
