"""Weights that are noise set to zero, and units that are left without use.

A unit can be removed when nothing reads it, or when it reads nothing: then its
output is a constant, which moves into the bias of the layer that reads it.
"""

import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import layers

from keras_vdrop.models.chains import SIZE
from keras_vdrop.models.chains import Chain
from keras_vdrop.models.chains import find_chains
from keras_vdrop.models.chains import has_units
from keras_vdrop.models.chains import in_float32
from keras_vdrop.models.chains import input_axis
from keras_vdrop.models.chains import over_positions
from keras_vdrop.models.chains import to_numpy
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers


class Removal:
    """Which units of a model are to go, and what is left of its layers.

    Args:
        chains: The chains of the model.
        kept: Dict with a boolean array for the producer of each chain, `False`
            for the units that go.
    """

    def __init__(self, chains: list[Chain], kept: dict):
        self.kept = kept
        self.inputs = {
            layer: kept[chain.producer][units]
            for chain in chains
            for layer, units in chain.features.items()
        }
        self.changed = {
            layer
            for chain in chains
            for layer in (chain.producer, *chain.between, chain.reader)
        }

    def smaller(self, layer: keras.Layer, serialized: dict) -> dict | None:
        """The serialized form of what is left of a layer."""
        if layer not in self.changed:
            return None
        config = dict(serialized["config"])
        if layer in self.kept:
            config[SIZE[type(layer)]] = int(self.kept[layer].sum())
        # Not built yet: it would be for the shapes of before.
        return {**serialized, "config": config, "build_config": None}

    def select(self, layer: keras.Layer, weights: dict) -> dict:
        """The weights that are left of a layer."""
        if layer in self.inputs and not has_units(layer):
            return {name: w[self.inputs[layer]] for name, w in weights.items()}
        if layer in self.inputs:
            kernel = weights["0"][..., self.inputs[layer], :]
            weights = {**weights, "0": kernel}
        if layer in self.kept:
            keep = self.kept[layer]
            return {name: w[..., keep] for name, w in weights.items()}
        return weights


def zero_noise(
    model: keras.Model, pairs: Iterable[tuple], threshold: float
) -> dict:
    """Sets weights with log alpha above a threshold to zero.

    Args:
        model: A variational model.
        pairs: Its layers, each with that of a plain model, which is changed.
        threshold: The largest log alpha to keep.

    Returns:
        A dict by plain layer of the number of its random weights, and of those
        that are zero now.
    """
    plain_of = {
        id(variable): (plain, other)
        for layer, plain in pairs
        for variable, other in zip(
            own_variables(layer), own_variables(plain), strict=True
        )
    }
    zeroed: dict = {}
    for layer in variational_layers(model):
        for weight in layer.random_weights:
            if weight.mean_variable is None:
                continue
            plain, variable = plain_of[id(weight.mean_variable)]
            log_alpha = weight.axes.over_kernel(
                weight.log_alpha(), weight.granularity
            )
            log_alpha = np.broadcast_to(to_numpy(log_alpha), variable.shape)
            # Not `<=`, which NaN fails.
            noise = log_alpha > threshold
            variable.assign(np.where(noise, 0, to_numpy(variable)))
            before = zeroed.get(plain, (0, 0))
            zeroed[plain] = (
                before[0] + noise.size,
                before[1] + int(noise.sum()),
            )
    return zeroed


def own_variables(layer: keras.Layer) -> list:
    return layer._trainable_variables + layer._non_trainable_variables


def plan_removal(model: keras.Model) -> Removal:
    """Finds the units of a plain model that can go.

    The model computes the same afterwards, with other weights: what is to be
    removed is read by nothing.
    """
    chains = find_chains(model)
    for chain in chains:
        fold_constants(chain)
    kept = {}
    # From the outputs on, since a unit that goes reads nothing any more.
    for chain in reversed(chains):
        kept[chain.producer] = drop_unread(chain)
    return Removal(chains, kept)


def fold_constants(chain: Chain) -> None:
    """Moves units that read nothing into the bias of the reader."""
    reader, features = chain.reader, chain.features[chain.reader]
    constant = ~reads(chain.producer, axis=-1)
    if not constant.any():
        return
    inputs = np.moveaxis(constant_inputs(chain), input_axis(reader), -1)
    inputs = np.where(constant[features], inputs, 0)
    shift = uniform_shift(reader, np.moveaxis(inputs, -1, input_axis(reader)))
    if reader.use_bias and shift is not None:
        reader.bias.assign(to_numpy(reader.bias).astype("float64") + shift)
    else:
        # Zeros can go in any case.
        nonzero = inputs.reshape(-1, len(features)).any(axis=0)
        constant[features[nonzero]] = False
    kernel = to_numpy(reader.kernel)
    reader.kernel.assign(np.where(constant[features][:, None], 0, kernel))


def uniform_shift(layer: keras.Layer, inputs: Any) -> Any:
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


def taps_inside(layer: keras.Layer, shape: tuple[int, ...]) -> Any:
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


def constant_inputs(chain: Chain) -> Any:
    """What reaches the reader if no unit of the producer reads anything."""
    producer = chain.producer
    bias = np.zeros(producer.kernel.shape[-1], "float32")
    if producer.use_bias:
        bias = to_numpy(producer.bias).astype("float32")
    values = to_numpy(producer.activation(keras.ops.convert_to_tensor(bias)))
    values = over_positions(values, producer)
    for layer in chain.between:
        values = layer(values)
    return to_numpy(values).astype("float32")


def drop_unread(chain: Chain) -> Any:
    """Which units are read. The others read nothing from now on."""
    producer = chain.producer
    features = chain.features[chain.reader]
    keep = np.zeros(producer.kernel.shape[-1], bool)
    keep[features[reads(chain.reader, axis=-2)]] = True
    if not keep.any():
        # A layer has one unit at least.
        keep[0] = True
    producer.kernel.assign(np.where(keep, to_numpy(producer.kernel), 0))
    return keep


def report(
    plain: keras.Model, pruned: keras.Model, zeroed: dict, kept: dict
) -> None:
    """Prints what was set to zero and what was removed, layer by layer."""
    rows = [("layer", "weights", "pruned", "units", "removed")]
    for layer in every_layer(plain):
        if layer in zeroed or layer in kept:
            row = zeroed.get(layer) or (math.prod(layer.kernel.shape), 0)
            if has_units(layer):
                units = layer.kernel.shape[-1]
                row += (units, units - int(np.sum(kept.get(layer, units))))
            cells = [f"{count:,}" for count in row]
            rows.append((layer.name, *cells, *["-"] * (4 - len(cells))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *counts in rows:
        cells = [name.ljust(widths[0]), *map(str.rjust, counts, widths[1:])]
        print("  ".join(cells))
    before, after = plain.count_params(), pruned.count_params()
    other_than_zero = sum(np.count_nonzero(w) for w in pruned.get_weights())
    print(
        f"Parameters: {before:,} before, {after:,} after, of which "
        f"{other_than_zero:,} are not zero."
    )


def reads(layer: keras.Layer, axis: int) -> Any:
    """Which indices of an axis of the kernel have a weight other than zero."""
    kernel = np.moveaxis(to_numpy(layer.kernel), axis, -1)
    return kernel.reshape(-1, kernel.shape[-1]).any(axis=0)
