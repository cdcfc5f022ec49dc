"""The training objective: mean negative log-likelihood plus weighted KL."""

from typing import Any

import keras

from keras_vdrop.core import validation
from keras_vdrop.core.seeds import tell_apart
from keras_vdrop.models.traversal import require_variational_layers

# What `tf.data.Dataset.cardinality` has for data without a length.
UNKNOWN = (-1, -2)


def set_num_examples(
    model: keras.Layer, num_examples: Any, kl_downscale: float = 1.0
) -> None:
    """Tells every variational layer of a model the size of the training set.

    The loss of `fit` becomes the variational bound of one example,
    `mean NLL + KL / (num_examples * kl_downscale)`, for a loss that is the
    mean negative log-likelihood over the batch, which is what Keras's losses
    give. Layers of nested models and inside wrappers are included. The model
    may be built or not, compiled or not; nothing is compiled anew. Layers that
    were given the same `seed` have different noise from then on.
    `keras_vdrop.callbacks.CountExamples` finds the number in `fit`.

    Args:
        model: A `keras.Model`, or a layer.
        num_examples: Positive integer of Python, numpy or the backend, the
            number of training examples N. `len` and `cardinality()` of a data
            set count examples only before `batch`.
        kl_downscale: Float above 0. The KL is divided by it; the paper's
            variant A2 has 3. It replaces what the layers were given.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([keras_vdrop.VariationalDense(10)])
    >>> keras_vdrop.set_num_examples(model, 60_000)
    >>> model.layers[0].num_examples
    60000
    """
    layers = require_variational_layers(model)
    if validation.as_integer(num_examples) in UNKNOWN:
        raise validation.invalid(
            "num_examples",
            "a positive integer",
            num_examples,
            "The cardinality of a `tf.data.Dataset` is -1 if it is infinite "
            "and -2 if it is not known. Use "
            "`keras_vdrop.callbacks.CountExamples()` in `fit`.",
        )
    tell_apart(weight for layer in layers for weight in layer.random_weights)
    for layer in layers:
        layer.set_num_examples(num_examples, kl_downscale)
