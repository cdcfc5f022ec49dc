"""The variables of a model as they were, whatever happens."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers


@contextlib.contextmanager
def restored(model: Any) -> Iterator[list]:
    """Whatever happens in here, the variables are the same afterwards.

    Gives pairs of all variables that may change and their values.
    """
    variables = list(model.non_trainable_variables)
    for layer in variational_layers(model):
        for weight in layer.random_weights:
            if weight.mean_variable is not None:
                variables.append(weight.mean_variable)
    if hasattr(model, "jax_state_sync"):
        # There `predict` takes all of them out of the model.
        variables = list(model.variables)
    # Keras does not count the states of recurrent layers as variables (3.15,
    # layers/rnn/rnn.py).
    for layer in every_layer(model):
        states = getattr(layer, "states", None)
        if getattr(layer, "stateful", False) and states is not None:
            variables += keras.tree.flatten(states)
    before = [(variable, ops.copy(variable)) for variable in variables]
    try:
        yield before
    finally:
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        for variable, value in before:
            variable.assign(value)
