"""Which units of a plain model belong together, and which are of use.

A unit is an output of a `Dense` layer, a channel of a convolution, a state of
a recurrent layer or a head of attention. Each has a number of its own. Layers
without weights between units hand the numbers on, a sum ties the units that it
adds, and a kernel reads the units of its inputs for the units of its outputs.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vdrop.core import validation


@dataclasses.dataclass
class Features:
    """What is known of a tensor.

    Args:
        labels: Integer array of the shape of one example, with a batch axis of
            1: which of `units` is behind each element.
        units: Array of the numbers of the units.
        values: Array of the shape of `labels`: what a constant unit gives.
        constant: Boolean array, which of `units` are the same for all inputs.
    """

    labels: Any
    units: Any
    values: Any
    constant: Any

    def along(self, axis: int) -> Any:
        """The labels of the indices of an axis, or `None` if mixed."""
        labels = np.moveaxis(self.labels, axis, -1)
        labels = labels.reshape(-1, labels.shape[-1])
        complete = len(set(labels[0])) == len(self.units)
        return labels[0] if complete and np.all(labels == labels[0]) else None

    def is_constant(self) -> Any:
        """For each element, whether it is the same for all inputs."""
        return self.constant[self.labels]


def features(labels: Any, units: Any, values: Any, constant: Any) -> Features:
    """What is known of a tensor; only the values of constants are used."""
    labels = np.asarray(labels).astype(int)
    values = np.where(constant[labels], values, 0)
    return Features(labels, units, values, constant)


class UnitGraph:
    """The units of a model.

    `axes` has for each layer with weights, by their names in a file, the units
    along some of their axes. `sizes` has the argument that says how many units
    a layer has, and these. `layers` are all layers that units pass through.
    """

    def __init__(self) -> None:
        self.axes: dict[keras.Layer, dict[str, dict[int, Any]]] = {}
        self.sizes: dict[keras.Layer, tuple[str, Any]] = {}
        self.layers: set[keras.Layer] = set()
        self._ties: list[tuple] = []
        self._reads: list[tuple] = []
        self._fixed: list[Any] = []
        self._count = 0

    def new(self, number: int) -> Any:
        """The numbers of new units."""
        self._count += number
        return np.arange(self._count - number, self._count)

    def fix(self, units: Any) -> None:
        """Says that units have to stay."""
        self._fixed.append(units)

    def tie(self, units: Any, others: Any) -> None:
        """Says that units stay or go with others."""
        self._ties.append((units, others))

    def read(self, inputs: Any, outputs: Any, weights: Any) -> None:
        """Says which of some units others depend on.

        Args:
            inputs: The units that are read.
            outputs: The units that read.
            weights: Boolean array with a row for each of `inputs` and a column
                for each of `outputs`.
        """
        self._reads.append((inputs, outputs, weights))

    def useful(self) -> Any:
        """Boolean array of all units: those that the outputs depend on."""
        useful = np.zeros(self._count, bool)
        for units in self._fixed:
            useful[units] = True
        self._spread(useful)
        for _, units in self.sizes.values():
            # A layer has one unit at least.
            if not useful[units].any():
                useful[units[0]] = True
                self._spread(useful)
        return useful

    def _spread(self, useful: Any) -> None:
        before = -1
        while before != useful.sum():
            before = useful.sum()
            for units, others in self._ties:
                both = useful[units] | useful[others]
                useful[units[both]] = useful[others[both]] = True
            for inputs, outputs, weights in self._reads:
                read = weights[:, useful[outputs]].any(axis=1)
                useful[inputs[read]] = True


@dataclasses.dataclass
class Call:
    """One call of a layer, or of an operation, and what it is called with.

    `sources` are the names of the layers whose outputs it gets. `is_plain`
    says that it is called once, as in inference, and with no tensors by name.
    """

    operation: Any
    sources: list[str]
    is_plain: bool


def calls_of(model: Any) -> Iterator[Call]:
    """What a functional or `Sequential` model calls, in an order that works."""
    if isinstance(model, keras.Sequential):
        source = ""
        for layer in model.layers:
            yield Call(layer, [source], True)
            source = layer.name
        return
    operations = {operation.name: operation for operation in model.operations}
    left = [
        (entry, number)
        for entry in _entries(model)
        for number in range(len(entry["inbound_nodes"]) or 1)
    ]
    done: set[tuple[str, int]] = set()
    waited = 0
    while left:
        entry, number = left.pop(0)
        nodes = entry["inbound_nodes"]
        node = nodes[number] if nodes else {}
        sources = _sources_of(node)
        if not done.issuperset(sources):
            left.append((entry, number))
            waited += 1
            if waited > len(left):
                raise validation.invalid(
                    "model",
                    "a model whose config has every call of its layers",
                    model,
                    f"The config of {type(model).__name__} leaves out what "
                    f"{entry['name']!r} is called with: keep all `layers` of "
                    "`super().get_config()`.",
                )
            continue
        waited = 0
        done.add((entry["name"], number))
        named = node.get("kwargs", {})
        is_plain = len(nodes) < 2 and not (
            named.get("training") or _sources_of(named)
        )
        names = [name for name, _ in sources]
        yield Call(operations[entry["name"]], names, is_plain)


def _entries(model: Any) -> list[dict]:
    """The layers in the config of a functional model, with their calls.

    The config of a class of its own has none, or something else of that name.
    """
    entries = model.get_config().get("layers", ())
    if not isinstance(entries, (list, tuple)):
        return []
    are_layers = all(
        isinstance(entry, dict) and "inbound_nodes" in entry
        for entry in entries
    )
    return list(entries) if are_layers else []


def outputs_of(model: Any) -> list[str]:
    """The names of the layers whose outputs are those of a model."""
    if isinstance(model, keras.Sequential):
        return [model.layers[-1].name]
    return list(model.output_names)


def single_readers(model: Any) -> dict:
    """For each layer called once, the layer called once that alone reads it."""
    readers: dict[str, list[str]] = {}
    operations, plain = {}, set()
    for call in calls_of(model):
        name = call.operation.name
        operations[name] = call.operation
        if call.is_plain:
            plain.add(name)
        for source in call.sources:
            readers.setdefault(source, []).append(name)
    for name in outputs_of(model):
        readers.setdefault(name, []).append("the outputs")
    return {
        operations[name]: operations[found[0]]
        for name, found in readers.items()
        if len(found) == 1 and plain.issuperset((name, found[0]))
    }


def _sources_of(config: Any) -> list[tuple[str, int]]:
    """The calls whose outputs a part of a config mentions.

    Each is the name of a layer and the number of the call.
    """
    if isinstance(config, (list, tuple)):
        return [call for part in config for call in _sources_of(part)]
    if not isinstance(config, dict):
        return []
    if config.get("class_name") == "__keras_tensor__":
        name, number, _ = config["config"]["keras_history"]
        return [(name, number)]
    return _sources_of(list(config.values()))
