"""Which layers a conversion has replaced, and which it has left alone."""

import collections
from typing import Any

import keras

from keras_vdrop.layers.in_place import is_plain
from keras_vdrop.models.rebuild import own_weights
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers
from keras_vdrop.models.variational_form import VARIATIONAL


def report_conversion(
    replaced: list, pairs: list[tuple], filtered: set[int]
) -> None:
    """Prints what was replaced, and what was not with the reason.

    Args:
        replaced: The layers that were replaced.
        pairs: The layers of the model beside those of the converted one.
        filtered: Ids of the layers that `filter` has left out.
    """
    converted = pairs[0][1]
    inside = {
        id(part)
        for layer in variational_layers(converted)
        for part in every_layer(layer)
    }
    left = [
        (layer, "left out by `filter`" if id(layer) in filtered else why(layer))
        for layer, other in pairs
        if id(other) not in inside and own_weights(other)
    ]
    groups = _groups((type(layer).__name__, layer) for layer in replaced)
    kinds = ", ".join(f"{len(layers)} {kind}" for kind, layers in groups)
    print(f"{_count(replaced, 'layer')} replaced: {kinds}")
    if left:
        print(f"{_count(left, 'layer')} with weights left alone:")
    for (kind, reason), layers in _groups(
        ((type(layer).__name__, reason), layer) for layer, reason in left
    ):
        names = ", ".join(layer.name for layer in layers[:3])
        more = f", and {len(layers) - 3} more" if len(layers) > 3 else ""
        print(f"  {len(layers)} {kind} ({reason}): {names}{more}")


def why(layer: keras.Layer) -> str:
    """Why a conversion leaves a layer alone that no filter leaves out."""
    known = [cls for cls in type(layer).__mro__ if cls in VARIATIONAL]
    if not known:
        return "no variational form"
    if known[0] is not type(layer):
        return f"a subclass of {known[0].__name__}"
    if not is_plain(layer):
        return "LoRA or quantization"
    return "made by the code of its owner"


def _groups(items: Any) -> Any:
    """Keys in the order in which they come, with all their values."""
    groups = collections.defaultdict(list)
    for key, value in items:
        groups[key].append(value)
    return groups.items()


def _count(items: list, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
