"""Batch normalization as a part of the layer before it."""

from typing import Any

import keras
import numpy as np
from keras import layers

from keras_vdrop.core import validation
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.models.conversion_arguments import check_model
from keras_vdrop.models.rebuild import copy_weights
from keras_vdrop.models.rebuild import rebuild
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.unit_constants import input_axis
from keras_vdrop.models.unit_constants import to_numpy
from keras_vdrop.models.unit_graph import single_readers

# Layers whose outputs are in the order of the last axes of their kernel.
DEPTHWISE = (layers.DepthwiseConv1D, layers.DepthwiseConv2D)
LINEAR = (
    layers.Dense,
    layers.Conv1D,
    layers.Conv2D,
    layers.Conv3D,
    *DEPTHWISE,
)


def fold_batch_normalization(
    model: keras.Model, safe_mode: bool = True
) -> keras.Model:
    """A model without the batch normalization that can be left out.

    At inference batch normalization multiplies each channel by
    `s = gamma / sqrt(variance + epsilon)` and adds a constant. Behind a
    `Dense`, a convolution or a depthwise convolution without activation, whose
    output nothing else reads, both become a part of its kernel and its bias,
    and an `Identity` takes the place of the batch normalization. The outputs
    of `predict` are the same but for rounding. The noise of a variational
    layer is multiplied too, so that alpha and the KL stay as they are. All
    other batch normalization is left where it is.

    It is for models that are trained: training goes on in another way then.
    Convert with `to_deterministic(fold_batch_normalization(model), ...)`, so
    that weights are rounded behind this.

    Args:
        model: A built functional or `Sequential` model, variational or plain.
        safe_mode: Boolean, as in `keras_vdrop.to_deterministic`.

    Returns:
        A model of the class of `model`, not compiled.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((8, 8, 3)),
    ...     keras.layers.Conv2D(4, 3, use_bias=False),
    ...     keras.layers.BatchNormalization(),
    ... ])
    >>> folded = keras_vdrop.fold_batch_normalization(model)
    >>> [type(layer).__name__ for layer in folded.layers]
    ['Conv2D', 'Identity']
    """
    check_model(model)
    validation.check_bool("safe_mode", safe_mode)
    normalization_of = _pairs(model)
    folded = {id(found) for found in normalization_of.values()}
    by_id = {id(layer): found for layer, found in normalization_of.items()}

    def replace(layer: keras.Layer, serialized: dict) -> Any:
        if id(layer) in folded:
            return _identity(serialized)
        if id(layer) in by_id:
            config = {**serialized["config"], "use_bias": True}
            return {**serialized, "config": config}
        return None

    def select(layer: keras.Layer, weights: dict) -> dict:
        if id(layer) in by_id:
            return _multiplied(layer, by_id[id(layer)], weights)
        return weights

    result = rebuild(model, replace, safe_mode)
    copy_weights(model, result, select)
    return result


def _identity(serialized: dict) -> dict:
    """What takes the place of a batch normalization, and of its calls."""
    config = {name: serialized["config"][name] for name in ("name", "dtype")}
    found = {
        **serialized,
        **keras.saving.serialize_keras_object(
            layers.Identity.from_config(config)
        ),
        "build_config": None,
    }
    if "inbound_nodes" in serialized:
        # The mask matters in training alone.
        found["inbound_nodes"] = [
            {"args": node["args"], "kwargs": {}}
            for node in serialized["inbound_nodes"]
        ]
    return found


def _pairs(model: keras.Model) -> dict[keras.Layer, Any]:
    """Layers, each with the batch normalization that it can take in."""
    return {
        layer: reader
        for part in every_layer(model)
        if isinstance(part, (keras.Function, keras.Sequential))
        for layer, reader in single_readers(part).items()
        if type(reader) is layers.BatchNormalization
        and _is_linear(layer)
        and reader.axis % len(layer.output.shape)
        == input_axis(layer) % len(layer.output.shape)
    }


def _is_linear(layer: Any) -> bool:
    cls = type(layer)
    if isinstance(layer, VariationalLayer):
        cls = layer.keras_class()
    if cls not in LINEAR or len(layer.trainable_weights) == 0:
        return False
    plain = getattr(layer, "quantization_mode", None) is None
    without_lora = not getattr(layer, "lora_enabled", False)
    return (
        layer.activation is keras.activations.linear and plain and without_lora
    )


def _multiplied(layer: Any, normalization: Any, weights: dict) -> dict:
    """The weights of a layer with a batch normalization in them."""
    scale, shift = _scale_and_shift(normalization)
    kernel = weights["0"].astype("float64")
    each = scale
    if isinstance(layer, DEPTHWISE):
        each = scale.reshape(kernel.shape[-2:])
    bias = weights["1"].astype("float64") if layer.use_bias else 0.0
    found = {
        **weights,
        "0": kernel * each,
        "1": bias * scale + shift,
    }
    variance = "kernel_noise/log_variance"
    if variance in weights:
        tiny = np.finfo("float32").tiny
        log_squares = np.log(np.maximum(each**2, tiny))
        found[variance] = weights[variance] + log_squares
    return found


def _scale_and_shift(normalization: Any) -> tuple[Any, Any]:
    """What inference multiplies each channel by, and adds to it."""
    mean, variance = (
        to_numpy(x).astype("float64")
        for x in (normalization.moving_mean, normalization.moving_variance)
    )
    scale = 1 / np.sqrt(variance + normalization.epsilon)
    if normalization.scale:
        scale = scale * to_numpy(normalization.gamma)
    shift = -mean * scale
    if normalization.center:
        shift = shift + to_numpy(normalization.beta)
    return scale, shift
