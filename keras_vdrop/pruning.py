"""Weights that are noise set to zero, and units that are left without use.

A unit is an output of a `Dense` layer or a channel of a convolution. It can go
when nothing reads it, or when it reads nothing: then its output is a constant,
which moves into the bias of the layer that reads it.
"""

import dataclasses

import keras
import numpy as np
from keras import layers

from keras_vdrop.layers.kernel import VariationalKernel

# The layers with units, and the argument that says how many.
SIZE = {
    layers.Dense: "units",
    layers.Conv1D: "filters",
    layers.Conv2D: "filters",
    layers.Conv3D: "filters",
}
# At inference each element of the output depends on the same one of the input.
ELEMENTWISE = (
    layers.ActivityRegularization,
    layers.AlphaDropout,
    layers.Dropout,
    layers.ELU,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.Identity,
    layers.LeakyReLU,
    layers.ReLU,
    layers.SpatialDropout1D,
    layers.SpatialDropout2D,
    layers.SpatialDropout3D,
)
# Each element of the output depends on one unit alone.
UNITWISE = (
    layers.AveragePooling1D,
    layers.AveragePooling2D,
    layers.AveragePooling3D,
    layers.Flatten,
    layers.GlobalAveragePooling1D,
    layers.GlobalAveragePooling2D,
    layers.GlobalAveragePooling3D,
    layers.GlobalMaxPooling1D,
    layers.GlobalMaxPooling2D,
    layers.GlobalMaxPooling3D,
    layers.MaxPooling1D,
    layers.MaxPooling2D,
    layers.MaxPooling3D,
)
# Not softmax and its like, which compare units.
ELEMENTWISE_ACTIVATIONS = (
    "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_tanh "
    "leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid silu "
    "soft_shrink softplus softsign sparse_plus sparse_sigmoid squareplus tanh "
    "tanh_shrink threshold"
).split()


@dataclasses.dataclass
class Chain:
    """A layer with units and the only layer with units that reads them.

    `features` has for `reader`, and for each batch normalization in between,
    the unit behind each feature of its inputs.
    """

    producer: keras.Layer
    between: list
    reader: keras.Layer
    features: dict


class Removal:
    """Which units of a model are to go, and what is left of its layers.

    Args:
        chains: The chains of the model.
        kept: Dict with a boolean array for the producer of each chain, `False`
            for the units that go.
    """

    def __init__(self, chains, kept):
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

    def smaller(self, layer, serialized):
        """The serialized form of what is left of a layer."""
        if layer not in self.changed:
            return None
        config = dict(serialized["config"])
        if layer in self.kept:
            config[SIZE[type(layer)]] = int(self.kept[layer].sum())
        # Not built yet: it would be for the shapes of before.
        return {**serialized, "config": config, "build_config": None}

    def select(self, layer, weights):
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


def zero_noise(pairs, threshold):
    """Sets weights with log alpha above a threshold to zero.

    Args:
        pairs: Layers of a variational model, each with that of a plain one,
            which is changed.
        threshold: The largest log alpha to keep.

    Returns:
        A dict with the number of weights for each plain layer.
    """
    zeroed = {}
    for layer, plain in pairs:
        if isinstance(layer, VariationalKernel):
            # Not `<=`, which NaN fails.
            noise = weight_log_alpha(layer) > threshold
            plain.kernel.assign(np.where(noise, 0, to_numpy(plain.kernel)))
            zeroed[plain] = int(noise.sum())
    return zeroed


def weight_log_alpha(layer):
    """Log alpha of each weight of a kernel."""
    log_alpha = to_numpy(layer.log_alpha)
    *_, inputs, outputs = shape = tuple(layer.kernel.shape)
    if layer.granularity == "input":
        # Groups of outputs have inputs of their own.
        groups = getattr(layer, "groups", 1)
        group = np.arange(outputs) // (outputs // groups)
        log_alpha = log_alpha[group * inputs + np.arange(inputs)[:, None]]
    return np.broadcast_to(log_alpha, shape)


def plan_removal(model):
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


def find_chains(model):
    """The chains of a model and of the models in it, from the inputs on."""
    chains = []
    for part in model._flatten_layers():
        if isinstance(part, (keras.Function, keras.Sequential)):
            reader_of = single_readers(part)
            for layer in part.layers:
                if has_units(layer) and is_elementwise(layer.activation):
                    chains.append(follow(layer, reader_of))
    return [chain for chain in chains if chain is not None]


def single_readers(model):
    """For each layer called once, the layer called once that alone reads it."""
    if isinstance(model, keras.Sequential):
        return dict(zip(model.layers, model.layers[1:], strict=False))
    entries = model.get_config().get("layers", ())
    calls = {entry["name"]: len(entry["inbound_nodes"]) for entry in entries}
    readers = {name: [] for name in calls}
    for entry in entries:
        for source in sources_of(entry["inbound_nodes"]):
            readers[source].append(entry["name"])
    for name in model.output_names:
        readers[name].append(None)
    operations = {operation.name: operation for operation in model.operations}
    return {
        operations[name]: operations[found[0]]
        for name, found in readers.items()
        if len(found) == 1 and calls[name] == calls.get(found[0]) == 1
    }


def sources_of(config):
    """Names of the layers whose outputs a part of a config mentions."""
    if isinstance(config, (list, tuple)):
        return [name for part in config for name in sources_of(part)]
    if not isinstance(config, dict):
        return []
    if config.get("class_name") == "__keras_tensor__":
        return [config["config"]["keras_history"][0]]
    return sources_of(list(config.values()))


def follow(producer, reader_of):
    """The chain that begins with a layer, or `None`."""
    units = to_numpy(producer.kernel).shape[-1]
    # Which unit each element comes from, counted from 1.
    origin = over_positions(np.arange(1, units + 1), producer)
    between, features = [], {}
    layer = reader_of.get(producer)
    while layer is not None and not has_units(layer):
        if type(layer) is layers.BatchNormalization:
            features[layer] = along(origin, layer.axis, units)
        elif type(layer) in UNITWISE and None not in producer.output.shape[1:]:
            origin = to_numpy(in_float32(layer)(origin))
        elif not is_elementwise_layer(layer):
            return None
        between.append(layer)
        layer = reader_of.get(layer)
    if layer is None:
        return None
    features[layer] = along(origin, input_axis(layer), units)
    if any(units_read is None for units_read in features.values()):
        return None
    return Chain(producer, between, layer, features)


def along(origin, axis, units):
    """The unit behind each index of an axis, or `None` if they are mixed."""
    origin = np.moveaxis(origin, axis, -1)
    origin = origin.reshape(-1, origin.shape[-1])
    found = np.rint(origin[0]).astype(int)
    if np.abs(origin - found).max() > 1e-3 or len(set(found)) != units:
        return None
    return found - 1


def fold_constants(chain):
    """Moves units that read nothing into the bias of the reader."""
    reader, features = chain.reader, chain.features[chain.reader]
    constant = ~reads(chain.producer, axis=-1)
    if not constant.any():
        return
    inputs = np.moveaxis(constant_inputs(chain), input_axis(reader), -1)
    inputs = np.where(constant[features], inputs, 0)
    shift = uniform_shift(reader, np.moveaxis(inputs, -1, input_axis(reader)))
    if reader.use_bias and shift is not None:
        reader.bias.assign(to_numpy(reader.bias) + shift)
    else:
        # Zeros can go in any case.
        nonzero = inputs.reshape(-1, len(features)).any(axis=0)
        constant[features[nonzero]] = False
    kernel = to_numpy(reader.kernel)
    reader.kernel.assign(np.where(constant[features][:, None], 0, kernel))


def uniform_shift(layer, inputs):
    """What inputs add to the outputs of a layer, if everywhere the same."""
    if type(layer) is not layers.Dense and None in layer.input.shape[1:]:
        return None
    # With padding it is another at the borders.
    shift = np.moveaxis(linear(layer, inputs), input_axis(layer), -1)
    shift = shift.reshape(-1, shift.shape[-1])
    uniform = np.abs(shift - shift[0]).max() <= 1e-6 * np.abs(shift).max()
    return shift[0] if uniform else None


def constant_inputs(chain):
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


def linear(layer, inputs):
    """The outputs of a layer without its bias and activation."""
    bare = in_float32(layer, use_bias=False, activation=None)
    bare.build(inputs.shape)
    bare.kernel.assign(to_numpy(layer.kernel))
    return to_numpy(bare(inputs))


def in_float32(layer, **changes):
    """A layer made anew, without its weights."""
    config = {**layer.get_config(), "dtype": "float32", **changes}
    return type(layer).from_config(config)


def drop_unread(chain):
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


def report(plain, pruned, zeroed, kept):
    """Prints what was set to zero and what was removed, layer by layer."""
    rows = [("layer", "weights", "log alpha above", "units", "removed")]
    for layer in plain._flatten_layers():
        if layer in zeroed or layer in kept:
            keep = kept.get(layer, np.ones(layer.kernel.shape[-1], bool))
            row = np.prod(layer.kernel.shape), zeroed.get(layer, 0)
            row += keep.size, (~keep).sum()
            rows.append((layer.name, *(f"{count:,}" for count in row)))
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


def has_units(layer):
    """Whether it is a `Dense` or a convolution as Keras makes it."""
    if type(layer) not in SIZE or getattr(layer, "groups", 1) != 1:
        return False
    # LoRA and quantization have more.
    return len(layer.weights) == 1 + layer.use_bias


def is_elementwise_layer(layer):
    if type(layer) is layers.Activation:
        return is_elementwise(layer.activation)
    return type(layer) in ELEMENTWISE


def is_elementwise(activation):
    return any(
        activation is getattr(keras.activations, name)
        for name in ELEMENTWISE_ACTIVATIONS
    )


def reads(layer, axis):
    """Which indices of an axis of the kernel have a weight other than zero."""
    kernel = np.moveaxis(to_numpy(layer.kernel), axis, -1)
    return kernel.reshape(-1, kernel.shape[-1]).any(axis=0)


def input_axis(layer):
    """The axis of the units, before a layer and after it."""
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return 1 if channels_first else -1


def over_positions(values, layer):
    """A batch of one output of a layer with the same values everywhere."""
    shape = [size or 1 for size in layer.output.shape]
    batch = np.moveaxis(np.ones([1, *shape[1:]]), input_axis(layer), -1)
    batch = (batch * values).astype("float32")
    return np.moveaxis(batch, -1, input_axis(layer))


def to_numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
