"""Dropout that is on outside training (Gal and Ghahramani 2016)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_vdrop import backend
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


class MonteCarloDropout:
    """A scope in which the dropout layers of a model are as in training.

    All other layers are as they are. As with `sampling.scope` it counts where
    the call is traced.

    Args:
        model: A `keras.Model`.
    """

    def __init__(self, model: Any):
        self.model = model

    def __enter__(self) -> None:
        self.layers = dropout_layers(self.model)
        for layer in self.layers:
            # In the dictionary, past the tracking of Keras and of torch.
            vars(layer)["call"] = _as_in_training(layer.call)

    def __exit__(self, *error: Any) -> None:
        for layer in self.layers:
            del vars(layer)["call"]

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


def _as_in_training(call: Any) -> Any:
    def noisy_call(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": True})

    return noisy_call
