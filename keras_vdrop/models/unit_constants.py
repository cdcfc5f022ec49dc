"""Units that are constants, which move into the bias of their readers."""

import math
from typing import Any

import numpy as np
from keras import layers

from keras_vdrop import backend
from keras_vdrop.models.unit_graph import Features


def fold_constants(layer: Any, inputs: Features) -> None:
    """Moves the constants that a `Dense` or a convolution reads to its bias."""
    constant = features_that_are(inputs.is_constant(), input_axis(layer))
    shift = None
    if layer.use_bias and constant.any():
        shift = uniform_shift(layer, inputs.values)
    if shift is None:
        # Zeros can go in any case.
        constant &= features_that_are(inputs.values == 0, input_axis(layer))
    else:
        bias = to_numpy(layer.bias).astype("float64")
        layer.bias.assign(bias + shift)
    kernel = to_numpy(layer.kernel)
    layer.kernel.assign(np.where(constant[:, None], 0, kernel))


def features_that_are(elements: Any, axis: int) -> Any:
    """The indices of an axis of which this is true at all positions."""
    elements = np.moveaxis(elements, axis, -1)
    return elements.reshape(-1, elements.shape[-1]).all(axis=0)


def uniform_shift(layer: Any, inputs: Any) -> Any:
    """What inputs add to the outputs of a layer, if everywhere the same.

    Each output is compared with itself alone, in float64: a large one does not
    hide that another differs, nor do large terms that cancel.
    """
    if type(layer) is not layers.Dense and None in layer.input.shape[1:]:
        return None
    kernel = to_numpy(layer.kernel).astype("float64")
    inputs = np.moveaxis(inputs, input_axis(layer), -1).astype("float64")
    features = inputs.reshape(-1, inputs.shape[-1])
    if not rows_agree(features):
        return None
    kernel = kernel.reshape(-1, *kernel.shape[-2:])
    shift = taps_inside(layer, inputs.shape) @ (features[0] @ kernel)
    return shift[0] if rows_agree(shift) else None


def rows_agree(rows: Any) -> bool:
    """Whether each column has one value, but for rounding in float32."""
    with np.errstate(invalid="ignore"):
        gaps = np.abs(rows - rows[0])
    return bool(np.all(gaps <= 1e-6 * np.abs(rows[0])))


def taps_inside(layer: Any, shape: tuple[int, ...]) -> Any:
    """Which parts of a kernel meet inputs, and which meet padding.

    Args:
        layer: A `Dense` layer or a convolution.
        shape: The shape of its inputs, with the features last.

    Returns:
        Array of ones and zeros with a column for each position of the kernel,
        and a row for each case there is among the outputs.
    """
    if type(layer) is layers.Dense:
        return np.ones((1, 1))
    taps = math.prod(layer.kernel_size)
    # Of an input of ones, each output is what one position has read.
    bare = in_float32(
        layer,
        filters=taps,
        use_bias=False,
        activation=None,
        kernel_initializer="zeros",
    )
    ones = np.moveaxis(
        np.ones((*shape[:-1], 1), "float32"), -1, input_axis(layer)
    )
    bare.build(ones.shape)
    bare.kernel.assign(np.eye(taps).reshape(*layer.kernel_size, 1, taps))
    read = np.moveaxis(to_numpy(bare(ones)), input_axis(layer), -1)
    return np.unique(np.rint(read.reshape(-1, taps)), axis=0)


def input_axis(layer: Any) -> int:
    """The axis of the units, before a layer and after it."""
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return 1 if channels_first else -1


def over_positions(values: Any, layer: Any) -> Any:
    """A batch of one output of a layer with the same values everywhere."""
    shape = [size or 1 for size in layer.output.shape]
    batch = np.moveaxis(np.ones([1, *shape[1:]]), input_axis(layer), -1)
    batch = (batch * values).astype("float32")
    return np.moveaxis(batch, -1, input_axis(layer))


def in_float32(layer: Any, **changes: Any) -> Any:
    """A layer made anew, without its weights."""
    config = {**layer.get_config(), "dtype": "float32", **changes}
    return type(layer).from_config(config)


def to_numpy(tensor: Any) -> Any:
    return backend.to_numpy([tensor])[0]


def run(layer: Any, values: Any) -> Any:
    """What a layer makes of constants, and something where there are none."""
    found = to_numpy(layer(np.asarray(values, "float32")))
    return found.astype("float32")
