"""The variational layer that a plain Keras layer becomes."""

import hashlib
from typing import Any

import keras

from keras_vdrop import layers as variational
from keras_vdrop.layers.dropout import VariationalDropout

# The variational form of each Keras layer that has one.
VARIATIONAL = {
    cls.keras_class(): cls
    for cls in (getattr(variational, name) for name in variational.__all__)
    if issubclass(cls, keras.Layer) and cls is not VariationalDropout
}


def has_form(layer: keras.Layer) -> bool:
    """Whether the layer has a variational form. A subclass may do anything."""
    return type(layer) in VARIATIONAL


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


def seed_of_layer(seed: int, index: int) -> int:
    """A seed for one layer of a model.

    Hashed, because equal seeds would be equal noise, and `seed + index` would
    be a seed of the next model too.
    """
    digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % 2**31
