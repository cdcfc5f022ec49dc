"""What layers with weights do with the units of their inputs.

See `unit_rules`, which has the other layers.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

from keras_vdrop.layers.in_place import is_plain
from keras_vdrop.models.unit_constants import features_that_are
from keras_vdrop.models.unit_constants import fold_constants
from keras_vdrop.models.unit_constants import input_axis
from keras_vdrop.models.unit_constants import over_positions
from keras_vdrop.models.unit_constants import run
from keras_vdrop.models.unit_constants import to_numpy
from keras_vdrop.models.unit_graph import Features
from keras_vdrop.models.unit_graph import UnitGraph
from keras_vdrop.models.unit_graph import features

# Not softmax and its like, which compare units.
ELEMENTWISE_ACTIVATIONS = (
    "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_tanh "
    "leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid silu "
    "soft_shrink softplus softsign sparse_plus sparse_sigmoid squareplus tanh "
    "tanh_shrink threshold"
).split()


def is_elementwise(activation: Any) -> bool:
    return any(
        activation is getattr(keras.activations, name)
        for name in ELEMENTWISE_ACTIVATIONS
    )


def linear(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    """A `Dense` layer or a convolution."""
    if not is_plain(layer) or getattr(layer, "groups", 1) != 1:
        return None
    units = _units_read(graph, layer, inputs)
    if units is not None:
        fold_constants(layer, inputs)
    kernel = to_numpy(layer.kernel)
    reads = kernel.reshape(-1, *kernel.shape[-2:]).any(axis=0)
    own = _produce(graph, layer, reads.shape[1])
    if units is not None:
        graph.read(units, own, reads)
    graph.axes[layer] = {"0": {-2: units, -1: own}, "1": {0: own}}
    return _outputs(graph, layer, own, ~reads.any(axis=0))


def depthwise(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    axis = input_axis(layer)
    labels = None if inputs is None else inputs.along(axis)
    elementwise = is_elementwise(layer.activation)
    if labels is None or not elementwise or not is_plain(layer):
        return None
    units, repeats = inputs.units[labels], layer.depth_multiplier
    graph.axes[layer] = {"0": {-2: units}, "1": {0: np.repeat(units, repeats)}}
    kernel = to_numpy(layer.kernel)
    dead = ~kernel.any(axis=(*range(kernel.ndim - 2), -1))
    constant = inputs.is_constant()
    if None in layer.input.shape[1:]:
        # What is not zero may be another constant at the borders.
        constant = constant & (inputs.values == 0)
        values = over_positions(_of_bias(layer, len(labels) * repeats), layer)
    else:
        values = run(layer, inputs.values)
    # A unit may be behind several features.
    steady = np.ones(len(inputs.units), bool)
    np.logical_and.at(steady, labels, dead | features_that_are(constant, axis))
    labels = over_positions(np.repeat(labels, repeats), layer)
    return features(labels, inputs.units, values, steady)


def separable(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    if not is_plain(layer):
        return None
    units = _units_read(graph, layer, inputs)
    first = to_numpy(layer.depthwise_kernel)
    first = first.reshape(-1, *first.shape[-2:]).any(axis=0)
    second = to_numpy(layer.pointwise_kernel)
    second = second.reshape(*first.shape, -1) != 0
    reads = (first[..., None] & second).any(axis=1)
    own = _produce(graph, layer, reads.shape[1])
    middle = None
    if units is not None:
        graph.read(units, own, reads & ~_zeros(layer, inputs)[:, None])
        middle = np.repeat(units, layer.depth_multiplier)
    graph.axes[layer] = {
        "0": {-2: units},
        "1": {-2: middle, -1: own},
        "2": {0: own},
    }
    return _outputs(graph, layer, own, ~reads.any(axis=0))


def recurrent(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    cell = layer.cell
    if layer.stateful or layer.return_state:
        return None
    units = _units_read(graph, layer, inputs)
    own = _produce(graph, layer, layer.units)
    every = {
        name: to_numpy(getattr(cell, name))
        for name in ("kernel", "recurrent_kernel", "bias")
        if getattr(cell, name, None) is not None
    }
    # The axes of each: inputs or states, gates, units.
    gates = {
        name: value.reshape(-1, value.shape[-1] // layer.units, layer.units)
        for name, value in every.items()
    }
    reads = gates["kernel"].any(axis=1)
    states = gates["recurrent_kernel"].any(axis=1)
    silent = _silent(layer, gates)
    states[silent] = False
    graph.read(own, own, states)
    if units is not None:
        graph.read(units, own, reads & ~_zeros(layer, inputs)[:, None])
    repeated = np.tile(own, gates["kernel"].shape[1])
    graph.axes[cell] = {
        "0": {-2: units, -1: repeated},
        "1": {-2: own, -1: repeated},
        "2": {-1: repeated},
    }
    activations = [cell.activation, getattr(cell, "recurrent_activation", None)]
    if not all(x is None or is_elementwise(x) for x in activations):
        graph.fix(own)
    labels = over_positions(np.arange(len(own)), layer)
    return features(labels, own, np.zeros(labels.shape), silent)


def _silent(layer: Any, gates: dict[str, Any]) -> Any:
    """The states that are zero at all steps, because their candidate is."""
    zero = keras.ops.zeros((1,))
    if to_numpy(layer.cell.activation(zero))[0] != 0:
        return np.zeros(layer.units, bool)
    candidate = 0 if type(layer) is layers.SimpleRNN else 2
    parts = {name: value[:, candidate] for name, value in gates.items()}
    recurrent_kernel = parts.pop("recurrent_kernel")
    quiet = ~np.concatenate(list(parts.values())).any(axis=0)
    silent, count = quiet, -1
    # Those that read only silent ones are silent, as long as all are.
    while count != silent.sum():
        count = silent.sum()
        silent = silent & ~recurrent_kernel[~silent].any(axis=0)
    return silent


def embedding(graph: UnitGraph, layer: Any, inputs: Any) -> Features | None:
    del inputs
    if not is_plain(layer):
        return None
    table = to_numpy(layer.embeddings)
    own = graph.new(table.shape[1])
    graph.sizes[layer] = ("output_dim", own)
    graph.axes[layer] = {"0": {-1: own}}
    labels = over_positions(np.arange(len(own)), layer)
    dead = ~table.any(axis=0)
    return features(labels, own, np.zeros(labels.shape), dead)


def attention(graph: UnitGraph, layer: Any, *inputs: Any) -> None:
    """The heads. What comes in and goes out stays as it is."""
    del inputs
    config = layer.get_config()
    whole = isinstance(layer.output, keras.KerasTensor)
    parts = [
        layer.query_dense,
        layer.key_dense,
        layer.value_dense,
        layer.output_dense,
    ]
    if config.get("use_gate") or not whole or not all(map(is_plain, parts)):
        return
    heads = graph.new(layer.num_heads)
    graph.sizes[layer] = ("num_heads", heads)
    graph.layers.add(layer)
    for part in parts[:3]:
        graph.axes[part] = {"0": {1: heads}, "1": {0: heads}}
    graph.axes[parts[3]] = {"0": {0: heads}}
    value, output = parts[2:]
    constant = ~to_numpy(value.kernel).any(axis=(0, 2))
    bias = np.zeros(value.kernel.shape[1:])
    if value.bias is not None:
        bias = to_numpy(value.bias).astype("float64")
    kernel = to_numpy(output.kernel).astype("float64")
    if output.bias is None:
        constant &= ~bias.any(axis=1)
    else:
        # The weights of the attention sum to one.
        shift = np.einsum("hv,hv...->...", bias[constant], kernel[constant])
        output.bias.assign(to_numpy(output.bias).astype("float64") + shift)
    kernel[constant] = 0
    output.kernel.assign(kernel)
    read = graph.new(1)
    graph.fix(read)
    graph.read(heads, read, kernel.reshape(len(heads), -1).any(axis=1)[:, None])


def _produce(graph: UnitGraph, layer: Any, number: int) -> Any:
    own = graph.new(number)
    name = "filters" if hasattr(layer, "filters") else "units"
    graph.sizes[layer] = (name, own)
    return own


def _units_read(graph: UnitGraph, layer: Any, inputs: Any) -> Any:
    """The units behind the features of the inputs, or `None`."""
    if inputs is None:
        return None
    labels = inputs.along(input_axis(layer))
    if labels is None:
        graph.fix(inputs.units)
        return None
    return inputs.units[labels]


def _zeros(layer: Any, inputs: Features) -> Any:
    """The features that are zero for all inputs."""
    zero = inputs.is_constant() & (inputs.values == 0)
    return features_that_are(zero, input_axis(layer))


def _outputs(
    graph: UnitGraph, layer: Any, own: Any, constant: Any
) -> Features | None:
    """The units of a layer, of which some read nothing."""
    if not is_elementwise(layer.activation):
        graph.fix(own)
        return None
    labels = over_positions(np.arange(len(own)), layer)
    values = over_positions(_of_bias(layer, len(own)), layer)
    return features(labels, own, values, constant)


def _of_bias(layer: Any, number: int) -> Any:
    """What a layer gives where it reads nothing but zeros."""
    bias = np.zeros(number, "float32")
    if layer.use_bias:
        bias = to_numpy(layer.bias).astype("float32")
    return to_numpy(layer.activation(keras.ops.convert_to_tensor(bias)))
