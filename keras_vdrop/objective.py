"""The training objective: mean negative log-likelihood plus weighted KL."""

import keras

from keras_vdrop import validation
from keras_vdrop.layers.noise import VariationalNoise


def variational_layers(model):
    """The variational layers of a model, in its order, each once.

    Those of nested models and inside wrappers are included.
    """
    return [
        layer
        for layer in _in_order(model, set())
        if isinstance(layer, VariationalNoise)
    ]


def _in_order(layer, seen):
    # Keras has no public walk that enters wrappers; this is its own. It turns
    # the order of nested layers round (3.15, layers/layer.py), so it takes one
    # step at a time.
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield layer
    for child in layer._flatten_layers(include_self=False, recursive=False):
        yield from _in_order(child, seen)


def set_num_examples(model, num_examples, kl_downscale=1.0):
    """Tells every variational layer of a model the size of the training set.

    The loss of `fit` becomes the variational bound of one example,
    `mean NLL + KL / (num_examples * kl_downscale)`, for a loss that is the
    mean negative log-likelihood over the batch, which is what Keras's losses
    give. Layers of nested models and inside wrappers are included. The model
    may be built or not, compiled or not; nothing is compiled anew.

    Args:
        model: A `keras.Model`, or a layer.
        num_examples: Positive integer, the number of training examples N.
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
    if not isinstance(model, keras.Layer):
        raise validation.invalid("model", "a keras.Model or a layer", model)
    layers = variational_layers(model)
    if not layers:
        raise validation.invalid(
            "model",
            "a model with a variational layer",
            model,
            "A model that makes its layers when it is built has to be built "
            "first.",
        )
    # A `fit` that was refused for want of N leaves a train function behind
    # that tensorflow cannot trace again.
    refused = any(layer.num_examples is None for layer in layers)
    for layer in layers:
        layer.set_num_examples(num_examples, kl_downscale)
    if refused and getattr(model, "train_function", None) is not None:
        model.make_train_function(force=True)
