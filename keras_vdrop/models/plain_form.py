"""The plain Keras layer that a variational layer is at inference."""

import inspect
import itertools
from typing import Any

import keras

from keras_vdrop.core import arguments
from keras_vdrop.core import validation

# What a class may define without a change of what inference computes.
HARMLESS = ("get_config", "from_config")
SPECIAL = ("__call__", "__getattr__", "__getattribute__")


def plain_form(layer: Any) -> keras.Layer:
    """A new layer, not built, that computes what the layer predicts.

    A class that changes what the layer predicts offers its plain form by its
    class method `keras_class`.
    """
    changed = changed_inference(layer)
    if changed is not None:
        cls, name = changed
        raise validation.invalid(
            "model",
            "a model of layers whose inference is that of Keras layers",
            layer,
            f"Layer '{layer.name}' is a {type(layer).__name__}, and "
            f"`{cls.__name__}.{name}` would be lost. Let its class method "
            "`keras_class` return the class of a plain layer that does the "
            "same, or move what it adds into a layer of its own.",
        )
    cls = layer.keras_class()
    if cls is keras.Layer:
        # Not left out, so that a functional graph need not be wired anew.
        config = {name: layer.get_config()[name] for name in ("name", "dtype")}
        return keras.layers.Identity.from_config(config)
    if isinstance(layer, cls):
        # By the method of the Keras class: the arguments that it has.
        return cls.from_config(cls.get_config(layer))
    taken = inspect.signature(cls).parameters
    config = {
        name: value
        for name, value in layer.get_config().items()
        if name in taken or name not in arguments.NAMES
    }
    return cls.from_config(config)


def changed_inference(layer: Any) -> tuple[type, str] | None:
    """A class of the user's that changes inference, and by what."""
    # Who says `keras_class` says what the classes behind it become.
    classes = itertools.takewhile(
        lambda cls: "keras_class" not in vars(cls), type(layer).__mro__
    )
    for cls in classes:
        if cls.__module__.partition(".")[0] == "keras_vdrop":
            continue
        for name in vars(cls):
            if _runs_at_inference(name, layer.keras_class()):
                return cls, name
    return None


def _runs_at_inference(name: str, keras_class: type) -> bool:
    if name.startswith("__"):
        return name in SPECIAL
    if name in HARMLESS:
        return False
    # Other methods of the mixin are for the noise, and names that the Keras
    # layer has not are none that it calls.
    return name == "plain_call" or hasattr(keras_class, name)
