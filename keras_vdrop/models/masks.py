"""Which positions of the outputs of a model count."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop.models.parts import Part
from keras_vdrop.models.parts import concatenate
from keras_vdrop.models.traversal import every_layer


class Masks:
    """The masks that a model gives its outputs.

    `model.predict` does not return them. So a model that has a layer which
    makes masks is called once more, if its outputs have positions.

    Args:
        model: A `keras.Model`.
    """

    def __init__(self, model: Any):
        self.model = model
        self.makes_masks = any(map(_makes_mask, every_layer(model)))
        self.parts: list[list] = []

    def add(self, part: Part, outputs: list[Any]) -> None:
        """Of a part of the data, and any outputs for it."""
        if not self.makes_masks or all(x.ndim < 3 for x in outputs):
            return
        for batch in part.batches:
            inputs = keras.tree.map_structure(ops.convert_to_tensor, batch)
            # The states of recurrent layers stay as they are.
            with keras.StatelessScope():
                found = self.model(inputs, training=False)
            self.parts.append([mask_of(x) for x in keras.tree.flatten(found)])

    def joined(self) -> list[Any] | None:
        """For each output booleans, or `None` if all positions count."""
        found = [concatenate(list(x)) for x in zip(*self.parts, strict=True)]
        return [None if np.all(mask) else mask for mask in found] or None


class _Mask(keras.losses.Loss):
    """Keras has no public function for the mask of a tensor.

    On jax it is no attribute of the tensor. A loss multiplies with it (3.15,
    losses/loss.py).
    """

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        del y_true
        return ops.ones(ops.shape(y_pred)[:-1])


def mask_of(outputs: Any) -> Any:
    """Booleans, which positions of a tensor count."""
    return ops.convert_to_numpy(_Mask()(0.0, outputs)) != 0


def _makes_mask(layer: keras.Layer) -> bool:
    if isinstance(layer, keras.layers.Masking):
        return True
    if getattr(layer, "mask_zero", False):
        return True
    # A layer of the user may make one.
    is_own = not type(layer).__module__.startswith(("keras.", "keras_vdrop."))
    method = type(layer).compute_mask
    return is_own and method is not keras.Layer.compute_mask
