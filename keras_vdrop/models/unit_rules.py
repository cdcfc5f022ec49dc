"""What each kind of layer does with the units of its inputs.

Layers with weights are in `unit_layers`.

A rule takes the graph, a layer and what is known of its inputs, `None` if
nothing is. It returns what is known of the outputs, or `None`: then nobody may
rely on the units of its inputs, and they stay.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import layers

from keras_vdrop.models.unit_constants import in_float32
from keras_vdrop.models.unit_constants import input_axis
from keras_vdrop.models.unit_constants import over_positions
from keras_vdrop.models.unit_constants import run
from keras_vdrop.models.unit_constants import to_numpy
from keras_vdrop.models.unit_graph import Features
from keras_vdrop.models.unit_graph import UnitGraph
from keras_vdrop.models.unit_graph import features
from keras_vdrop.models.unit_layers import attention
from keras_vdrop.models.unit_layers import depthwise
from keras_vdrop.models.unit_layers import embedding
from keras_vdrop.models.unit_layers import is_elementwise
from keras_vdrop.models.unit_layers import linear
from keras_vdrop.models.unit_layers import recurrent
from keras_vdrop.models.unit_layers import separable


def normalization(graph: UnitGraph, layer: Any, inputs: Any) -> Any:
    labels = None if inputs is None else inputs.along(layer.axis)
    if labels is None:
        return None
    units = inputs.units[labels]
    graph.axes[layer] = {
        str(number): {0: units} for number in range(len(layer.weights))
    }
    return elementwise(graph, layer, inputs)


def elementwise(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    """At inference each element depends on the same one of the inputs."""
    del graph
    activation = getattr(layer, "activation", None)
    if inputs is None or not (activation is None or is_elementwise(activation)):
        return None
    values = run(layer, inputs.values)
    return features(inputs.labels, inputs.units, values, inputs.constant)


def unitwise(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    """Each element of the outputs depends on one unit alone."""
    del graph
    if inputs is None or None in layer.input.shape[1:]:
        return None
    bare = in_float32(layer)
    found = to_numpy(bare(np.asarray(inputs.labels, "float32")))
    labels = np.rint(found).astype(int)
    # Other numbers for the units, and their negatives, are found too, unless
    # units are mixed: by the largest, or by the mean.
    numbers = np.random.default_rng(0).normal(size=len(inputs.units))
    for other in (numbers, -numbers):
        found = to_numpy(bare(other[inputs.labels].astype("float32")))
        if not np.allclose(found, other[labels], rtol=0, atol=1e-4):
            return None
    values = run(layer, inputs.values)
    return features(labels, inputs.units, values, inputs.constant)


def padding(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    """The zeros around a unit belong to it."""
    del graph
    axis = input_axis(layer)
    labels = None if inputs is None else inputs.along(axis)
    if labels is None:
        return None
    labels = over_positions(labels, layer)
    constant = inputs.constant
    if None in layer.input.shape[1:]:
        used = np.where(inputs.is_constant(), inputs.values, 0) == 0
        steady = np.ones(len(inputs.units), bool)
        np.logical_and.at(steady, inputs.labels.ravel(), used.ravel())
        return features(
            labels, inputs.units, np.zeros(labels.shape), constant & steady
        )
    values = run(layer, inputs.values)
    return features(labels, inputs.units, values, constant)


def addition(graph: UnitGraph, layer: Any, *inputs: Any) -> Features | None:
    """Ties the units that are added."""
    del layer
    # With less than two, something else than a tensor is added.
    if len(inputs) < 2 or any(x is None for x in inputs):
        return None
    if len({x.labels.shape for x in inputs}) != 1:
        return None
    first = inputs[0]
    steady = np.logical_and.reduce([x.is_constant() for x in inputs])
    constant = np.ones(len(first.units), bool)
    np.logical_and.at(constant, first.labels.ravel(), steady.ravel())
    for other in inputs[1:]:
        pairs = np.stack([first.labels.ravel(), other.labels.ravel()])
        ours, theirs = np.unique(pairs, axis=1)
        graph.tie(first.units[ours], other.units[theirs])
    values = sum(x.values for x in inputs)
    return features(first.labels, first.units, values, constant)


def concatenation(
    graph: UnitGraph, layer: Any, *inputs: Any
) -> Features | None:
    if all(x is None for x in inputs):
        return None
    parts, offset = [], 0
    for tensor, known in zip(layer.input, inputs, strict=True):
        if known is None:
            shape = [1, *(size or 1 for size in tensor.shape[1:])]
            unit = graph.new(1)
            graph.fix(unit)
            known = Features(
                np.zeros(shape, int), unit, np.zeros(shape), np.zeros(1, bool)
            )
        parts.append((known, known.labels + offset))
        offset += len(known.units)
    join = np.concatenate
    return features(
        join([labels for _, labels in parts], axis=layer.axis),
        join([known.units for known, _ in parts]),
        join([known.values for known, _ in parts], axis=layer.axis),
        join([known.constant for known, _ in parts]),
    )


RULES: dict[type, Callable] = {
    layers.Add: addition,
    layers.BatchNormalization: normalization,
    layers.Concatenate: concatenation,
    layers.Embedding: embedding,
    layers.MultiHeadAttention: attention,
    **dict.fromkeys(
        (layers.Dense, layers.Conv1D, layers.Conv2D, layers.Conv3D), linear
    ),
    **dict.fromkeys(
        (layers.DepthwiseConv1D, layers.DepthwiseConv2D), depthwise
    ),
    **dict.fromkeys(
        (layers.SeparableConv1D, layers.SeparableConv2D), separable
    ),
    **dict.fromkeys((layers.SimpleRNN, layers.LSTM, layers.GRU), recurrent),
    **dict.fromkeys(
        (
            layers.Activation,
            layers.ActivityRegularization,
            layers.AlphaDropout,
            layers.Dropout,
            layers.ELU,
            layers.GaussianDropout,
            layers.GaussianNoise,
            layers.Identity,
            layers.LeakyReLU,
            layers.ReLU,
            layers.SpatialDropout1D,
            layers.SpatialDropout2D,
            layers.SpatialDropout3D,
        ),
        elementwise,
    ),
    **dict.fromkeys(
        (
            layers.AveragePooling1D,
            layers.AveragePooling2D,
            layers.AveragePooling3D,
            layers.Flatten,
            layers.GlobalAveragePooling1D,
            layers.GlobalAveragePooling2D,
            layers.GlobalAveragePooling3D,
            layers.GlobalMaxPooling1D,
            layers.GlobalMaxPooling2D,
            layers.GlobalMaxPooling3D,
            layers.MaxPooling1D,
            layers.MaxPooling2D,
            layers.MaxPooling3D,
        ),
        unitwise,
    ),
    **dict.fromkeys(
        (layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D),
        padding,
    ),
}


TAKES_SEVERAL = (addition, attention, concatenation)


def rule_of(operation: Any) -> Callable | None:
    """The rule of a layer, or of the operation that `x + y` is."""
    kind = type(operation)
    is_sum = kind.__name__ == "Add" and kind.__module__.startswith("keras.")
    return addition if is_sum else RULES.get(kind)
