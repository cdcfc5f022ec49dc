"""The arguments of the conversions, checked."""

from collections.abc import Callable
from typing import Any

import keras

from keras_vdrop.core import arguments as noise_arguments
from keras_vdrop.core import validation


def check_model(model: keras.Model) -> None:
    try:
        if not isinstance(model, keras.Model):
            raise NotImplementedError("It is none.")
        model.get_config()
    except NotImplementedError as error:
        raise validation.invalid(
            "model",
            "a keras.Model with a config, from which it can be built again",
            model,
            str(error),
        ) from error
    graph = isinstance(model, (keras.Function, keras.Sequential))
    if not model.built and not graph:
        raise validation.invalid(
            "model",
            "a built model",
            model,
            "Call it on some data first.",
        )


def check_filter(filter: Any) -> None:
    if filter is not None and not callable(filter):
        raise validation.invalid(
            "filter", "a function of a layer, or None", filter
        )


def check_arguments(arguments: dict) -> None:
    unknown = sorted(set(arguments) - set(noise_arguments.NAMES))
    if unknown:
        raise validation.invalid(
            "layer_arguments",
            f"some of {sorted(noise_arguments.NAMES)}",
            unknown,
            "What the plain layer has is kept.",
        )


def choose(filter: Callable | None, layer: keras.Layer) -> dict | None:
    """The arguments for the layer, or `None` to leave it as it is."""
    chosen = True if filter is None else filter(layer)
    if isinstance(chosen, dict):
        check_arguments(chosen)
        return chosen
    if chosen not in (True, False):
        raise validation.invalid(
            "filter",
            "a function that returns True, False or a dict of arguments",
            filter,
            f"It returned {chosen!r} for layer '{layer.name}'.",
        )
    return {} if chosen else None
