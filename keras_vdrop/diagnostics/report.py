"""What there is to tell about the noise of each layer of a model."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.models.traversal import require_variational_layers

# A log alpha that is nearer than this to where it began has not moved, and one
# that is nearer to its limit is at the limit.
STILL = 0.05


@dataclasses.dataclass
class NoiseReport:
    """What there is to tell about one random weight of a layer.

    Attributes:
        layer: The layer.
        weight: Its noise, or `None` if there is none before it is built.
        name: The name of the layer, with a number behind it if another has
            the same, and the name of the variable if the layer has several.
        rates: The dropout rates, a numpy array, or `None` before it is built.
        kl: The KL in nats, or `None` if the rates are not learned.
        weights: The number of weights that have noise. A layer of noise
            alone has none.
        prunable: The share of the alphas whose logarithm is above the
            threshold, or `None` if they are not learned.
        has_moved: Whether some alpha is not where it began.
        at_limit: The share of the alphas at `max_alpha`.
    """

    layer: VariationalLayer
    weight: RandomWeight | None
    name: str
    rates: Any = None
    kl: float | None = None
    weights: int = 0
    prunable: float | None = None
    has_moved: bool = True
    at_limit: float = 0.0


def report(model: keras.Layer, threshold: float = 3.0) -> list[NoiseReport]:
    """A `NoiseReport` of each random weight, in the model's order.

    A layer that is used several times is reported once; layers of nested
    models and inside wrappers are included.
    """
    layers = require_variational_layers(model)
    names = _distinct([layer.name for layer in layers])
    found = []
    for layer, name in zip(layers, names, strict=True):
        weights = layer.weights_by_name()
        if not weights:
            found.append(NoiseReport(layer, None, name))
        for variable, weight in weights.items():
            full = f"{name}/{variable}" if len(weights) > 1 else name
            found.append(_report_weight(layer, weight, full, threshold))
    return found


def _distinct(names: list[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


def _report_weight(
    layer: VariationalLayer, weight: RandomWeight, name: str, threshold: float
) -> NoiseReport:
    found = NoiseReport(layer, weight, name)
    if not weight.built:
        return found
    log_alpha = weight.log_alpha()
    found.rates = keras.ops.convert_to_numpy(keras.ops.sigmoid(log_alpha))
    if weight.mean_variable is not None:
        found.weights = int(np.prod(weight.axes.kernel_shape))
    if weight.adaptive:
        found.kl = float(keras.ops.convert_to_numpy(weight.kl_tensor()))
        log_alpha = keras.ops.convert_to_numpy(log_alpha)
        found.prunable = float(np.mean(log_alpha > threshold))
        began = math.log(weight.rate / (1 - weight.rate))
        found.has_moved = bool(np.max(np.abs(log_alpha - began)) > STILL)
        if weight.limit is not None:
            limit = math.log(weight.limit) - STILL
            found.at_limit = float(np.mean(log_alpha >= limit))
    return found
