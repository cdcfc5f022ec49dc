"""Which layers a conversion has replaced, and which it has left alone."""

import collections
from typing import Any

import keras

from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.models.rebuild import own_weights
from keras_vdrop.models.traversal import every_layer


def report_conversion(replaced: list, converted: keras.Model) -> None:
    left = [
        layer
        for layer in every_layer(converted)
        if own_weights(layer) and not isinstance(layer, VariationalLayer)
    ]
    kinds = ", ".join(
        f"{len(layers)} {kind}" for kind, layers in _by_class(replaced)
    )
    print(f"{_count(replaced, 'layer')} replaced: {kinds}")
    if left:
        print(f"{_count(left, 'layer')} with weights left alone:")
    for kind, layers in _by_class(left):
        names = ", ".join(layer.name for layer in layers[:3])
        more = f", and {len(layers) - 3} more" if len(layers) > 3 else ""
        print(f"  {len(layers)} {kind}: {names}{more}")


def _by_class(layers: list) -> Any:
    groups = collections.defaultdict(list)
    for layer in layers:
        groups[type(layer).__name__].append(layer)
    return groups.items()


def _count(items: list, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
