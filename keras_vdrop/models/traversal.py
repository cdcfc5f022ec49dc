"""The layers of a model, in its order."""

from collections.abc import Iterator

import keras

from keras_vdrop.core import validation
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.layers.base import VariationalLayer


def variational_layers(model: keras.Layer) -> list[VariationalLayer]:
    """The variational layers of a model, in its order, each once.

    Layers of nested models and inside wrappers are included. A layer that is
    a part of a variational layer, such as its cell, is not.

    Args:
        model: A `keras.Model`, or a layer.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((3,)),
    ...     keras_vdrop.VariationalDense(4, name="first"),
    ...     keras.Sequential([keras_vdrop.VariationalDense(2, name="last")]),
    ... ])
    >>> [layer.name for layer in keras_vdrop.variational_layers(model)]
    ['first', 'last']
    """
    if not isinstance(model, keras.Layer):
        raise validation.invalid("model", "a keras.Model or a layer", model)
    inside = {
        id(part)
        for layer in every_layer(model)
        if isinstance(layer, VariationalLayer)
        for part in every_layer(layer)[1:]
    }
    return [
        layer
        for layer in every_layer(model)
        if isinstance(layer, VariationalLayer) and id(layer) not in inside
    ]


def require_variational_layers(
    model: keras.Layer, kind: type = keras.Layer
) -> list[VariationalLayer]:
    """The variational layers of a model, which must have at least one."""
    what = "a keras.Model" if kind is keras.Model else "a model"
    layers = variational_layers(model) if isinstance(model, kind) else []
    if not layers:
        raise validation.invalid(
            "model",
            f"{what} with a variational layer",
            model,
            "A model that makes its layers when it is built has to be built "
            "first.",
        )
    return layers


def every_layer(model: keras.Layer) -> list[keras.Layer]:
    """A model and all layers in it, in its order, each once.

    The noise of a variational layer is a part of that layer.
    """
    return list(_in_order(model, set()))


def children(layer: keras.Layer) -> list[keras.Layer]:
    """The layers right inside a layer."""
    # Keras has no public walk that enters wrappers.
    found = layer._flatten_layers(include_self=False, recursive=False)
    return [x for x in found if not isinstance(x, RandomWeight)]


def own_noise(layer: keras.Layer) -> list[RandomWeight]:
    """The noise that a layer has itself, and not a layer inside it."""
    found = layer._flatten_layers(include_self=False, recursive=False)
    return [x for x in found if isinstance(x, RandomWeight)]


def _in_order(layer: keras.Layer, seen: set[int]) -> Iterator[keras.Layer]:
    # Keras's own walk turns the order of nested layers round (3.15,
    # layers/layer.py), so this takes one step at a time.
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield layer
    for child in children(layer):
        yield from _in_order(child, seen)
