"""Dropout that is on outside training (Gal and Ghahramani 2016)."""

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import sampling
from keras_vdrop.core.seeds import InitialState
from keras_vdrop.models.traversal import every_layer

# `SpatialDropout1D` and its kin are subclasses of `Dropout`.
DROPOUT = (
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
)


def dropout_layers(model: keras.Layer) -> list[keras.Layer]:
    """The layers of Keras that drop or scale their inputs at random."""
    return [
        layer
        for layer in every_layer(model)
        if isinstance(layer, DROPOUT) and layer.rate > 0
    ]


# How many scopes of all threads a layer is in, by its id.
_users: collections.Counter = collections.Counter()
_changing = threading.Lock()


class MonteCarloDropout:
    """Lets the dropout layers of a model obey `sampling.scope`.

    While it is entered, these layers ask in each call whether they are in a
    scope with dropout. Calls of other threads are not, and do what they always
    do. All other layers are as they are.

    Args:
        model: A `keras.Model`.
    """

    def __init__(self, model: Any):
        self.model = model

    def __enter__(self) -> None:
        self.layers = dropout_layers(self.model)
        with _changing:
            for layer in self.layers:
                _users[id(layer)] += 1
                if _users[id(layer)] == 1:
                    # In the dictionary, past the tracking of Keras and torch.
                    vars(layer)["call"] = _obedient(layer, layer.call)

    def __exit__(self, *error: Any) -> None:
        with _changing:
            for layer in self.layers:
                _users[id(layer)] -= 1
                if not _users[id(layer)]:
                    del _users[id(layer)], vars(layer)["call"]

    @contextlib.contextmanager
    def seeded(self, seed: int, salt: str) -> Iterator[None]:
        """The masks in here follow from the seed and the salt."""
        states = [
            layer.seed_generator.state
            for layer in self.layers
            if hasattr(layer, "seed_generator")
        ]
        for number, state in enumerate(states):
            words = InitialState(seed, f"{salt} {number}").words[:2]
            state.assign(ops.cast(ops.convert_to_tensor(words), state.dtype))
        with backend.random_state(InitialState(seed, salt).words[0]):
            yield


def _obedient(layer: keras.Layer, call: Any) -> Any:
    def obedient_call(*args: Any, **kwargs: Any) -> Any:
        scope = sampling.scope_of(layer)
        if scope is not None and scope.dropout:
            kwargs["training"] = True
        return call(*args, **kwargs)

    return obedient_call
