"""Weights with as many digits as their posterior can tell."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_vdrop import backend
from keras_vdrop.coding import grid
from keras_vdrop.models.pruning import own_variables
from keras_vdrop.models.traversal import variational_layers


def round_to_noise(
    model: keras.Model, pairs: Iterable[tuple], precision: float
) -> dict[keras.Layer, float]:
    """Rounds the weights of a plain model to multiples of a step.

    The step is a power of two near `precision` standard deviations of the
    posterior of the median weight that is not zero, one for each kernel.
    Where a weight is 0 in the plain model already, it stays 0.

    Args:
        model: A variational model.
        pairs: Its layers, each with that of the plain model.
        precision: The step, in standard deviations.

    Returns:
        A dict by plain layer of the step of its bias, which is rounded by
        `round_biases`: a bias is a weight of the input 1.
    """
    plain_of = {
        id(variable): (plain, other)
        for layer, plain in pairs
        for variable, other in zip(
            own_variables(layer), own_variables(plain), strict=True
        )
    }
    steps: dict[keras.Layer, float] = {}
    for layer in variational_layers(model):
        for weight in layer.random_weights:
            if weight.mean_variable is None:
                continue
            plain, variable = plain_of[id(weight.mean_variable)]
            step = _step(weight, variable, precision)
            if step is not None:
                _round(variable, step)
                # Of several kernels the finest.
                steps[plain] = min(step, steps.get(plain, step))
    return steps


def _step(weight: Any, variable: Any, precision: float) -> float | None:
    """The step of a kernel, or `None` if nothing is left of it."""
    log_variance = weight.log_variance()
    log_variance, values = backend.to_numpy([log_variance, variable])
    left = values != 0
    if not left.any():
        return None
    log_variance = np.broadcast_to(log_variance, left.shape)[left]
    deviation = np.exp(0.5 * np.median(log_variance.astype("float64")))
    return grid.nearest_step(precision * deviation)


def round_biases(steps: dict[keras.Layer, float]) -> None:
    """Rounds what else a layer learns to the step of its kernel."""
    for layer, step in steps.items():
        for variable in layer._trainable_variables:
            _round(variable, step)


def _round(variable: Any, step: float) -> None:
    (values,) = backend.to_numpy([variable])
    variable.assign(grid.rounded(values, step))
