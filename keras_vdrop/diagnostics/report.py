"""What there is to tell about the noise of each layer of a model."""

import dataclasses
import math
from typing import Any

import keras

from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.diagnostics import measures
from keras_vdrop.diagnostics import readings
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.models.traversal import require_variational_layers


@dataclasses.dataclass
class NoiseReport:
    """What there is to tell about one random weight of a layer.

    Attributes:
        layer: The layer.
        weight: Its noise, or `None` if there is none before it is built.
        name: The name of the layer, with a number behind it if another has
            the same, and the name of the variable if the layer has several.
        shape: The shape of the alphas, or `None` before it is built.
        mean, least, greatest: Of the dropout rates.
        kl: The KL in nats, or `None` if the rates are not learned.
        weights: The number of weights that have noise. A layer of noise
            alone has none.
        prunable: The share of the alphas whose logarithm is above the
            threshold, or `None` if they are not learned.
        has_moved: Whether some alpha is not where it began.
        at_limit: The share of the alphas at `max_alpha`.
        counts: How many rates are in each bin of the histogram, if asked for.
    """

    layer: VariationalLayer
    weight: RandomWeight | None
    name: str
    shape: tuple[int, ...] | None = None
    mean: float = 0.0
    least: float = 0.0
    greatest: float = 0.0
    kl: float | None = None
    weights: int = 0
    prunable: float | None = None
    has_moved: bool = True
    at_limit: float = 0.0
    counts: Any = None


def report(
    model: keras.Layer,
    threshold: float = 3.0,
    histogram: measures.Histogram | None = None,
) -> list[NoiseReport]:
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
            found.append(NoiseReport(layer, weight, full))
    built = [x for x in found if x.weight is not None and x.weight.built]
    of = [x.weight for x in built if x.weight is not None]
    read = readings.read(model, of, threshold, histogram)
    for one, its_weight, reading in zip(built, of, read, strict=True):
        _fill(one, its_weight, reading)
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


def _fill(
    found: NoiseReport, weight: RandomWeight, reading: readings.Reading
) -> None:
    found.shape = tuple(weight.variable.shape)
    found.mean = reading.mean
    found.least = reading.least
    found.greatest = reading.greatest
    found.counts = reading.counts
    if weight.mean_variable is not None:
        found.weights = math.prod(weight.axes.kernel_shape)
    if weight.adaptive:
        found.kl = reading.kl
        found.prunable = reading.prunable
        found.has_moved = reading.moved > measures.STILL
        found.at_limit = reading.at_limit
