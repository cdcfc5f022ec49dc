"""Weights that are noise set to zero, and units that are left without use.

A unit can be removed when nothing reads it, or when it reads nothing: then its
output is a constant, which moves into the bias of the layers that read it.
"""

import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop.core import hooks
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers
from keras_vdrop.models.unit_constants import to_numpy
from keras_vdrop.models.unit_graph import UnitGraph
from keras_vdrop.models.unit_graph import calls_of
from keras_vdrop.models.unit_graph import outputs_of
from keras_vdrop.models.unit_rules import TAKES_SEVERAL
from keras_vdrop.models.unit_rules import rule_of


def zero_noise(
    model: keras.Model, pairs: Iterable[tuple], threshold: float
) -> dict:
    """Sets weights with log alpha above a threshold to zero.

    Args:
        model: A variational model.
        pairs: Its layers, each with that of a plain model, which is changed.
        threshold: The largest log alpha to keep.

    Returns:
        A dict by plain layer of the number of its random weights, and of those
        that are zero now.
    """
    plain_of = {
        id(variable): (plain, other)
        for layer, plain in pairs
        for variable, other in zip(
            own_variables(layer), own_variables(plain), strict=True
        )
    }
    zeroed: dict = {}
    for layer in variational_layers(model):
        for weight in layer.random_weights:
            if weight.mean_variable is None:
                continue
            plain, variable = plain_of[id(weight.mean_variable)]
            log_alpha = weight.axes.over_kernel(
                weight.log_alpha(), weight.granularity
            )
            # Not `<=`, which NaN fails.
            noise = ops.broadcast_to(log_alpha > threshold, variable.shape)
            variable.assign(hooks.zero_where(noise, variable))
            total, pruned = zeroed.get(plain, (0, 0))
            total += math.prod(variable.shape)
            zeroed[plain] = total, pruned + int(to_numpy(ops.sum(noise)))
    return zeroed


def own_variables(layer: keras.Layer) -> list:
    return layer._trainable_variables + layer._non_trainable_variables


class Removal:
    """Which units of a model are to go, and what is left of its layers.

    Args:
        graph: The units of the model.
    """

    def __init__(self, graph: UnitGraph):
        self.graph = graph
        self.useful = graph.useful()
        self.kept = {
            layer: self.useful[units]
            for layer, (_, units) in graph.sizes.items()
        }

    def smaller(self, layer: keras.Layer, serialized: dict) -> dict | None:
        """The serialized form of what is left of a layer."""
        if layer not in self.graph.layers:
            return None
        config = dict(serialized["config"])
        if layer in self.kept:
            name, _ = self.graph.sizes[layer]
            config[name] = int(self.kept[layer].sum())
        # Not built yet: it would be for the shapes of before.
        return {**serialized, "config": config, "build_config": None}

    def select(self, layer: keras.Layer, weights: dict) -> dict:
        """The weights that are left of a layer."""
        left = dict(weights)
        for name, axes in self.graph.axes.get(layer, {}).items():
            for axis, units in axes.items():
                # A layer need not have a bias.
                if units is not None and name in left:
                    keep = self.useful[units]
                    left[name] = np.compress(keep, left[name], axis)
        return left


def plan_removal(model: keras.Model) -> Removal:
    """Finds the units of a plain model that can go.

    The model computes the same afterwards, with other weights: what is to be
    removed is read by nothing.
    """
    graph = UnitGraph()
    for part in every_layer(model):
        if isinstance(part, (keras.Function, keras.Sequential)):
            _add(graph, part)
    return Removal(graph)


def _add(graph: UnitGraph, model: Any) -> None:
    """Adds a model, without the models in it, to the graph of all units."""
    known: dict[str, Any] = {}
    for call in calls_of(model):
        inputs = [known.get(name) for name in call.sources]
        rule = rule_of(call.operation) if call.is_plain else None
        found = None
        if rule is not None and (len(inputs) == 1 or rule in TAKES_SEVERAL):
            found = rule(graph, call.operation, *inputs)
            graph.layers.add(call.operation)
        consumed = rule is not None and call.operation in graph.axes
        if found is None and not consumed:
            _fix(graph, inputs)
        known[call.operation.name] = found
    _fix(graph, [known.get(name) for name in outputs_of(model)])


def _fix(graph: UnitGraph, inputs: list) -> None:
    for features in inputs:
        if features is not None:
            graph.fix(features.units)


def report(
    plain: keras.Model, pruned: keras.Model, zeroed: dict, kept: dict
) -> None:
    """Prints what was set to zero and what was removed, layer by layer."""
    rows: list[tuple] = [("layer", "weights", "pruned", "units", "removed")]
    inside: set[keras.Layer] = set()
    for layer in every_layer(plain):
        if layer in inside or not (layer in zeroed or layer in kept):
            continue
        # The cell of a recurrent layer, the projections of attention.
        parts = every_layer(layer)
        inside.update(parts)
        counts = [zeroed.get(part) or _no_noise(part) for part in parts]
        row = tuple(map(sum, zip(*counts, strict=True)))
        if layer in kept:
            row += (kept[layer].size, int(np.sum(~kept[layer])))
        cells = [f"{count:,}" for count in row]
        rows.append((layer.name, *cells, *["-"] * (4 - len(cells))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *counts in rows:
        cells = [name.ljust(widths[0]), *map(str.rjust, counts, widths[1:])]
        print("  ".join(cells))
    before, after = plain.count_params(), pruned.count_params()
    other_than_zero = sum(np.count_nonzero(w) for w in pruned.get_weights())
    print(
        f"Parameters: {before:,} before, {after:,} after, of which "
        f"{other_than_zero:,} are not zero."
    )


def _no_noise(layer: keras.Layer) -> tuple[int, int]:
    """How many weights but biases a layer has, and that none is zeroed."""
    own = [x for x in own_variables(layer) if len(x.shape) > 1]
    return sum(math.prod(x.shape) for x in own), 0
