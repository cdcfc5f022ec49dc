"""Many samples of a model by one program, for accelerators.

There a small operation takes as long as its launch, so 32 samples one after
the other take 32 times as long as all of them together. On a CPU they do not,
and products of many weight samples at once are slower than one by one.
"""

import math
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import keras
import numpy as np
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.core.sampled import given
from keras_vdrop.models.parts import concatenate
from keras_vdrop.models.restored import restored
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers

# The memory, in bytes, that samples and what a layer computes may take: about,
# and beside the weights of the model.
LARGEST = 2**32
# The inputs of a layer, and mean and variance of its outputs.
ARRAYS = 3
# Estimators that draw noise for each example.
NOISE_OF_EXAMPLES = ("local", "example")


class Vectorized:
    """The outputs of a model for several samples, by a vectorized program.

    Args:
        model: A `keras.Model`.
        weights: The random weights that samples take the place of.
        states: The states of generators, of which a sample has its own. The
            scope that says which noise there is has to be open in `predict`.
    """

    def __init__(
        self, model: Any, weights: Sequence[RandomWeight], states: list
    ):
        self.model = model
        self.weights = weights
        self.states = states
        means = [weight.mean_variable for weight in weights]
        own = {id(variable) for variable in [*means, *states]}
        self.others = [v for v in model.variables if id(v) not in own]
        compiled = bool(getattr(model, "jit_compile", True))
        self.function = backend.at_once(self._outputs, compiled)

    def samples_in_memory(self, batches: Sequence) -> int:
        """How many samples of these batches there may be at once."""
        size = sum(
            _nbytes(weight.axes.kernel_shape, weight.variable.dtype)
            for weight in self.weights
        )
        return _fitting(self.model, batches, size)

    def predict(self, batches: Sequence, samples: list, states: list) -> list:
        """The outputs of each sample, arrays with all examples.

        Args:
            batches: Batches of inputs.
            samples: For each of `weights` its samples, on a first axis.
            states: For each of `states` that of each sample.
        """
        others = [ops.convert_to_tensor(v) for v in self.others]
        found = []
        for batch in batches:
            outputs, states = self.function((samples, states), (others, batch))
            leaves = backend.to_numpy(keras.tree.flatten(outputs))
            found.append(keras.tree.pack_sequence_as(outputs, leaves))
        return _split(concatenate(found, axis=1))

    def _outputs(self, own: Any, shared: Any) -> Any:
        """The outputs of one sample, and the states after it."""
        (samples, states), (others, batch) = own, shared
        mapping = [
            *zip(self.states, states, strict=True),
            *zip(self.others, others, strict=True),
        ]
        scales = {}
        for weight, sample in zip(self.weights, samples, strict=True):
            if weight.mean_variable is None:
                scales[id(weight)] = sample
            else:
                mapping.append((weight.mean_variable, sample))
        with keras.StatelessScope(mapping) as scope, given(scales):
            before = [scope.get_current_value(v) for v in self.others]
            outputs = backend.predict_step(self.model, batch)
            for variable, value in zip(self.others, before, strict=True):
                if scope.get_current_value(variable) is not value:
                    raise NotImplementedError(
                        f"'{variable.path}' changes from batch to batch."
                    )
            return outputs, [scope.get_current_value(v) for v in self.states]


class Folded:
    """The same for noise of each example: samples are more examples.

    Args:
        model: A `keras.Model`.
        states: The states of generators. All samples follow from the first.
    """

    def __init__(self, model: Any, states: list):
        self.model = model
        self.states = states

    def samples_in_memory(self, batches: Sequence) -> int:
        return _fitting(self.model, batches, 0)

    def predict(self, batches: Sequence, samples: list, states: list) -> list:
        del samples
        with restored(self.model):
            for variable, values in zip(self.states, states, strict=True):
                variable.assign(values[0])
            found = [self._outputs(batch, len(states[0])) for batch in batches]
        return _split(concatenate(found, axis=1))

    def _outputs(self, batch: Any, count: int) -> Any:
        """The outputs of a batch for so many samples, on a first axis."""
        rows = len(keras.tree.flatten(batch)[0])
        many = keras.tree.map_structure(
            lambda x: np.concatenate(count * [x]), batch
        )
        return keras.tree.map_structure(
            lambda x: x.reshape(count, rows, *x.shape[1:]),
            self.model.predict_on_batch(many),
        )


Way: TypeAlias = Vectorized | Folded


def way_of(
    model: Any, weights: Sequence[RandomWeight], mode: str
) -> Way | None:
    """How to draw many samples at once, or `None` where there is no way.

    Args:
        model: A `keras.Model`.
        weights: Its random weights.
        mode: One of `keras_vdrop.core.sampling.MODES`.
    """
    if mode == "weights":
        return Vectorized(model, weights, [])
    states = [weight.seed_state for weight in weights]
    if backend.VECTORIZES_NOISE:
        return Vectorized(model, [], states)
    layers = variational_layers(model)
    if all(layer.estimator in NOISE_OF_EXAMPLES for layer in layers):
        return Folded(model, states)
    return None


def is_possible(model: Any) -> bool:
    """Whether it runs what `model.predict` would run, and on what it would."""
    makers = "make_predict_function", "predict_on_batch"
    is_own = all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in makers
    )
    # The states of recurrent layers are no variables of the model (Keras 3.15,
    # layers/rnn/rnn.py).
    layers = every_layer(model)
    has_states = any(getattr(layer, "stateful", False) for layer in layers)
    return (
        is_own
        and not has_states
        and not model.run_eagerly
        and any(map(backend.is_accelerator, model.variables[:1]))
    )


def _fitting(model: Any, batches: Sequence, size: int) -> int:
    """How many samples fit: each of so many bytes, what layers compute for a
    batch, and on the host the outputs for all batches.
    """
    arrays = [
        [np.asarray(x) for x in keras.tree.flatten(batch)] for batch in batches
    ]
    computed = max(
        max([x.nbytes for x in batch] + _outputs_bytes(model, batch))
        for batch in arrays
    )
    outputs = getattr(model, "outputs", None) or []  # Of a subclass none.
    fetched = sum(sum(_bytes_of(outputs, batch)) for batch in arrays)
    return max(1, LARGEST // max(size + ARRAYS * computed, fetched, 1))


def _split(outputs: Any) -> list:
    """What is on the first axis of each array."""
    count = len(keras.tree.flatten(outputs)[0])
    return [
        keras.tree.map_structure(lambda x, at=index: x[at], outputs)
        for index in range(count)
    ]


def _outputs_bytes(model: Any, inputs: list) -> list[int]:
    """The bytes of the outputs of each layer, where they are known."""
    found = []
    for layer in every_layer(model):
        try:
            found += _bytes_of(keras.tree.flatten(layer.output), inputs)
        except (AttributeError, ValueError):  # Never called on a symbol.
            continue
    return found


def _bytes_of(tensors: Sequence, inputs: list) -> list[int]:
    """The bytes that symbolic tensors of a model have with such inputs."""
    # For sizes that the model does not know, such as the length of a sequence.
    longest = max((max(x.shape[1:], default=1) for x in inputs), default=1)
    found = []
    for tensor in tensors:
        shape = [longest if n is None else n for n in tensor.shape[1:]]
        found.append(_nbytes([len(inputs[0]), *shape], tensor.dtype))
    return found


def _nbytes(shape: Sequence[int], dtype: Any) -> int:
    dtype = keras.backend.standardize_dtype(dtype)
    digits = "".join(x for x in dtype if x.isdigit())
    return math.prod(shape) * (int(digits or 8) // 8)
