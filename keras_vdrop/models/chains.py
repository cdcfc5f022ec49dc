"""Layers whose units only one other layer reads.

A unit is an output of a `Dense` layer or a channel of a convolution.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import layers

from keras_vdrop.models.traversal import every_layer

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


def find_chains(model: keras.Model) -> list[Chain]:
    """The chains of a model and of the models in it, from the inputs on."""
    chains = []
    for part in every_layer(model):
        if isinstance(part, (keras.Function, keras.Sequential)):
            reader_of = single_readers(part)
            for layer in part.layers:
                if has_units(layer) and is_elementwise(layer.activation):
                    chains.append(follow(layer, reader_of))
    return [chain for chain in chains if chain is not None]


def single_readers(model: keras.Model) -> dict:
    """For each layer called once, the layer called once that alone reads it."""
    if isinstance(model, keras.Sequential):
        return dict(zip(model.layers, model.layers[1:], strict=False))
    entries = model.get_config().get("layers", ())
    calls = {entry["name"]: len(entry["inbound_nodes"]) for entry in entries}
    readers: dict[str, list] = {name: [] for name in calls}
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


def sources_of(config: Any) -> list[str]:
    """Names of the layers whose outputs a part of a config mentions."""
    if isinstance(config, (list, tuple)):
        return [name for part in config for name in sources_of(part)]
    if not isinstance(config, dict):
        return []
    if config.get("class_name") == "__keras_tensor__":
        return [config["config"]["keras_history"][0]]
    return sources_of(list(config.values()))


def follow(producer: keras.Layer, reader_of: dict) -> Chain | None:
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


def along(origin: Any, axis: int, units: int) -> Any:
    """The unit behind each index of an axis, or `None` if they are mixed."""
    origin = np.moveaxis(origin, axis, -1)
    origin = origin.reshape(-1, origin.shape[-1])
    found = np.rint(origin[0]).astype(int)
    if np.abs(origin - found).max() > 1e-3 or len(set(found)) != units:
        return None
    return found - 1


def has_units(layer: keras.Layer) -> bool:
    """Whether it is a `Dense` or a convolution as Keras makes it."""
    if type(layer) not in SIZE or getattr(layer, "groups", 1) != 1:
        return False
    # LoRA and quantization have more.
    return len(layer.weights) == 1 + layer.use_bias


def is_elementwise_layer(layer: keras.Layer) -> bool:
    if type(layer) is layers.Activation:
        return is_elementwise(layer.activation)
    return type(layer) in ELEMENTWISE


def is_elementwise(activation: Any) -> bool:
    return any(
        activation is getattr(keras.activations, name)
        for name in ELEMENTWISE_ACTIVATIONS
    )


def input_axis(layer: keras.Layer) -> int:
    """The axis of the units, before a layer and after it."""
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return 1 if channels_first else -1


def over_positions(values: Any, layer: keras.Layer) -> Any:
    """A batch of one output of a layer with the same values everywhere."""
    shape = [size or 1 for size in layer.output.shape]
    batch = np.moveaxis(np.ones([1, *shape[1:]]), input_axis(layer), -1)
    batch = (batch * values).astype("float32")
    return np.moveaxis(batch, -1, input_axis(layer))


def in_float32(layer: keras.Layer, **changes: Any) -> keras.Layer:
    """A layer made anew, without its weights."""
    config = {**layer.get_config(), "dtype": "float32", **changes}
    return type(layer).from_config(config)


def to_numpy(tensor: Any) -> Any:
    return keras.ops.convert_to_numpy(tensor)
