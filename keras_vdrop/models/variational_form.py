"""The variational layer that a plain Keras layer becomes."""

from typing import Any

import keras

from keras_vdrop import layers as variational
from keras_vdrop.layers import in_place
from keras_vdrop.layers.recurrent.base_cell import VariationalCell

# The variational form of each Keras layer that has one.
VARIATIONAL = {
    cls.keras_class(): cls
    for cls in (getattr(variational, name) for name in variational.__all__)
    if issubclass(cls, variational.VariationalLayer)
    and issubclass(cls, keras.Layer)
    and cls.keras_class() not in (keras.Layer, keras.layers.Wrapper)
}


def has_form(layer: keras.Layer) -> bool:
    """Whether the layer has a variational form. A subclass may do anything."""
    return type(layer) in VARIATIONAL


def can_change(layer: keras.Layer) -> bool:
    """Whether its class can change in place, where its owner made it.

    That is not so for layers that are made of others: these change instead.
    The cell of a recurrent layer does not: a fused loop would not call it.
    """
    form = VARIATIONAL.get(type(layer))
    if form is None or issubclass(form, VariationalCell):
        return False
    return bool(form.axes) and in_place.is_plain(layer)


def variational_form(
    layer: keras.Layer, arguments: dict[str, Any]
) -> keras.Layer:
    """A new variational layer, not built, in the place of a plain one."""
    cls = VARIATIONAL[type(layer)]
    try:
        return cls(**{**layer.get_config(), **arguments})
    except ValueError as error:
        raise ValueError(
            f"{str(error).removesuffix('.')}. This is for the "
            f"{type(layer).__name__} '{layer.name}': let `filter` return "
            "False for it, to leave it as it is, or a dict of arguments for "
            "it alone."
        ) from error
